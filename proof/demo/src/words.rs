//! The orders that a buyer gets, and what it says.
//!
//! An order is a line of JSON on the buyer's standard input, after which the word [`GO`] opens the
//! shop. What it says are lines of words on a pipe that all buyers share; each is shorter than what
//! a pipe takes in one piece.

use std::path::PathBuf;
use std::time::Duration;

use latchwork_store::Moment;
use serde_json::{Value, json};

/// The word that opens the shop, and that lets a buyer who was stopped at the till go on.
pub(crate) const GO: &str = "go";

/// How long the lock of the articles lasts.
pub(crate) const EXPIRY: Duration = Duration::from_secs(1);

/// The most of a message that a buyer sends before it fails.
const LONGEST: usize = 1_000;

/// The four ways to buy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scene {
    /// Read, pack, write.
    NoLock,
    /// A key that is set if it is not there, with a fixed expiry, and deleted at the end.
    Naive,
    /// A mutex of Latchwork.
    Locked,
    /// The same, a fence on the stock, and a buyer who is stopped before it writes.
    Fenced,
}

impl Scene {
    pub(crate) const ALL: [Self; 4] = [Self::NoLock, Self::Naive, Self::Locked, Self::Fenced];

    pub(crate) fn number(self) -> usize {
        self as usize + 1
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::NoLock => "no lock",
            Self::Naive => "SET NX PX, then DEL",
            Self::Locked => "latchwork",
            Self::Fenced => "latchwork, one buyer stopped, fence",
        }
    }

    pub(crate) fn has_lease(self) -> bool {
        matches!(self, Self::Locked | Self::Fenced)
    }
}

/// What a buyer is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Order {
    /// Its number, from 1.
    pub(crate) buyer: u32,
    pub(crate) scene: Scene,
    /// How much there is at the beginning: by it a buyer knows which units take long to pack.
    pub(crate) stock: u32,
    /// The name of the lock.
    pub(crate) lock: String,
    pub(crate) ttl: Duration,
    /// Whether it waits at the till, once, between its last check and its write.
    pub(crate) waits_at_till: bool,
    /// The longest hold, for a buyer that cannot be stopped.
    pub(crate) max_hold: Option<Duration>,
}

/// What a buyer's process needs beside its order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Invitation {
    pub(crate) order: Order,
    /// The address of the locks.
    pub(crate) store: String,
    pub(crate) place: Place,
}

/// Where the stock of several processes is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// In a file of this folder.
    Folder(PathBuf),
    /// In the Redis server that the locks are in, under keys that begin so.
    Redis(String),
}

impl Invitation {
    /// One line.
    pub(crate) fn encode(&self) -> String {
        let order = &self.order;
        let (folder, prefix) = match &self.place {
            Place::Folder(path) => (Some(path.to_string_lossy()), None),
            Place::Redis(prefix) => (None, Some(prefix)),
        };
        json!({
            "buyer": order.buyer,
            "scene": order.scene.number(),
            "stock": order.stock,
            "lock": order.lock,
            "ttl_ms": order.ttl.as_millis() as u64,
            "waits_at_till": order.waits_at_till,
            "max_hold_ms": order.max_hold.map(|longest| longest.as_millis() as u64),
            "store": self.store,
            "folder": folder,
            "prefix": prefix,
        })
        .to_string()
    }

    pub(crate) fn decode(line: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(line).ok()?;
        let number = |name: &str| value[name].as_u64();
        let small = |name: &str| u32::try_from(number(name)?).ok();
        let text = |name: &str| value[name].as_str().map(str::to_owned);
        let scene = Scene::ALL.into_iter().find(|s| Some(s.number() as u64) == number("scene"))?;
        let place = match (text("folder"), text("prefix")) {
            (Some(path), None) => Place::Folder(path.into()),
            (None, Some(prefix)) => Place::Redis(prefix),
            _ => return None,
        };
        let order = Order {
            buyer: small("buyer")?,
            scene,
            stock: small("stock")?,
            lock: text("lock")?,
            ttl: Duration::from_millis(number("ttl_ms")?),
            waits_at_till: value["waits_at_till"].as_bool()?,
            max_hold: number("max_hold_ms").map(Duration::from_millis),
        };
        Some(Self { order, store: text("store")?, place })
    }
}

/// What a buyer says, and when it happened, by the boot clock that all processes share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) buyer: u32,
    pub(crate) at: Moment,
    pub(crate) event: Event,
}

/// What can happen to a buyer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// It waits for the shop to open.
    Ready,
    /// It is at the stock, and takes itself for the only one if the scene has a lock.
    Entered { token: Option<u64> },
    /// It has checked its lock, is about to write, and waits for the word to go on.
    AtTill,
    /// It was stopped; said by whoever stopped it.
    Stopped,
    /// It goes on; said by whoever let it.
    Continued,
    /// It has written that so much is left.
    Sold { left: u32 },
    /// It would have written that, and the fence had seen a larger token.
    Refused { left: u32, token: u64, newest: u64 },
    /// Its lease ended under it.
    Lost,
    /// It has left the stock. With the lock of the articles: whether its key was gone because it
    /// had expired, and whether it deleted the key of somebody else.
    Left { expired: bool, freed: bool },
    /// It has found nothing to buy and goes home.
    Done,
    /// It cannot go on.
    Failed(String),
}

impl Said {
    /// One line, shorter than `PIPE_BUF`.
    pub(crate) fn encode(&self) -> String {
        let words = match &self.event {
            Event::Ready => "ready".to_owned(),
            Event::Entered { token: None } => "entered".to_owned(),
            Event::Entered { token: Some(token) } => format!("entered {token}"),
            Event::AtTill => "at-till".to_owned(),
            Event::Stopped => "stopped".to_owned(),
            Event::Continued => "continued".to_owned(),
            Event::Sold { left } => format!("sold {left}"),
            Event::Refused { left, token, newest } => format!("refused {left} {token} {newest}"),
            Event::Lost => "lost".to_owned(),
            Event::Left { expired, freed } => {
                format!("left {} {}", u8::from(*expired), u8::from(*freed))
            }
            Event::Done => "done".to_owned(),
            Event::Failed(message) => {
                let message: String = message.chars().take(LONGEST).collect();
                format!("failed {}", message.replace('\n', " "))
            }
        };
        format!("{} {} {words}\n", self.buyer, self.at.as_nanos())
    }

    /// Reads a line without its end.
    pub(crate) fn decode(line: &str) -> Option<Self> {
        let mut head = line.splitn(4, ' ');
        let buyer = head.next()?.parse().ok()?;
        let at = Moment::from_nanos(head.next()?.parse().ok()?);
        let word = head.next()?;
        let rest = head.next().unwrap_or_default();
        let mut numbers = rest.split(' ').map(|word| word.parse::<u64>().ok());
        let mut number = || numbers.next().flatten();
        let event = match word {
            "ready" => Event::Ready,
            "entered" => Event::Entered { token: number() },
            "at-till" => Event::AtTill,
            "stopped" => Event::Stopped,
            "continued" => Event::Continued,
            "sold" => Event::Sold { left: number()?.try_into().ok()? },
            "refused" => Event::Refused {
                left: number()?.try_into().ok()?,
                token: number()?,
                newest: number()?,
            },
            "lost" => Event::Lost,
            "left" => Event::Left { expired: number()? == 1, freed: number()? == 1 },
            "done" => Event::Done,
            "failed" => Event::Failed(rest.to_owned()),
            _ => return None,
        };
        Some(Self { buyer, at, event })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip() {
        let all = [
            Event::Ready,
            Event::Entered { token: None },
            Event::Entered { token: Some((1 << 63) - 1) },
            Event::AtTill,
            Event::Stopped,
            Event::Continued,
            Event::Sold { left: 19 },
            Event::Refused { left: 19, token: 1, newest: 2 },
            Event::Lost,
            Event::Left { expired: true, freed: false },
            Event::Left { expired: false, freed: true },
            Event::Done,
            Event::Failed("store: no answer".into()),
        ];
        for event in all {
            let said = Said { buyer: 3, at: Moment::from_nanos(1 << 60), event };
            let line = said.encode();
            assert_eq!(Said::decode(line.trim_end()), Some(said), "{line}");
        }
        assert_eq!(Said::decode("3 4 laughed"), None);
    }

    #[test]
    fn a_message_stays_one_short_line() {
        let event = Event::Failed("x\n".repeat(10_000));
        let line = Said { buyer: 1, at: Moment::from_nanos(1), event }.encode();
        assert!(line.len() < 4_096);
        assert_eq!(line.matches('\n').count(), 1);
    }

    #[test]
    fn an_invitation_arrives_as_it_was_sent() {
        for place in [Place::Folder("/tmp/a b".into()), Place::Redis("latchwork-demo-1".into())] {
            let order = Order {
                buyer: 2,
                scene: Scene::Fenced,
                stock: 20,
                lock: "latchwork-demo-1".into(),
                ttl: Duration::from_millis(1_500),
                waits_at_till: true,
                max_hold: Some(Duration::from_secs(1)),
            };
            let sent = Invitation { order, store: "redis://:p w@h".into(), place };
            let line = sent.encode();
            assert!(!line.contains('\n'));
            assert_eq!(Invitation::decode(&line), Some(sent));
        }
    }
}
