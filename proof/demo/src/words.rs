//! The order that a buyer gets, and what it says: lines of JSON, each shorter than what a pipe takes in one piece.

use std::path::PathBuf;
use std::time::Duration;

use latchwork_store::clock::boot_time;
use serde::{Deserialize, Serialize};

/// How long the lock of the articles lasts.
pub(crate) const EXPIRY: Duration = Duration::from_secs(1);

/// The most of a message that a buyer sends before it fails.
const LONGEST: usize = 500;

/// Now, by the boot clock that all processes share, in nanoseconds.
pub(crate) fn now() -> u64 {
    boot_time().as_nanos()
}

/// The four ways to buy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Scene {
    /// Read, pack, write.
    #[default]
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
        ["no lock", "SET NX PX, then DEL", "latchwork", "latchwork, one buyer stopped, fence"]
            [self as usize]
    }

    pub(crate) fn has_lease(self) -> bool {
        matches!(self, Self::Locked | Self::Fenced)
    }
}

/// Where the stock of several processes is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Place {
    /// In a file of this folder.
    Folder(PathBuf),
    /// In the Redis server that the locks are in, under keys that begin so.
    Redis(String),
}

/// What a buyer is to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    /// Its number, from 1.
    pub(crate) buyer: u32,
    pub(crate) scene: Scene,
    /// How much there is at the beginning: by it a buyer knows which units take long to pack.
    pub(crate) stock: u32,
    /// The address of the locks.
    pub(crate) store: String,
    /// Where the stock is; `None` inside one process.
    pub(crate) place: Option<Place>,
    /// The name of the lock.
    pub(crate) lock: String,
    pub(crate) ttl: Duration,
    /// Whether it waits at the till, once, between its last check and its write.
    pub(crate) waits_at_till: bool,
    /// The longest hold, for a buyer that cannot be stopped.
    pub(crate) max_hold: Option<Duration>,
}

/// What a buyer says, and when it happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Said {
    pub(crate) buyer: u32,
    pub(crate) at: u64,
    pub(crate) event: Event,
}

/// What can happen to a buyer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

impl Event {
    pub(crate) fn failed(message: &str) -> Self {
        Self::Failed(message.chars().take(LONGEST).collect())
    }
}

/// One line, for a pipe.
pub(crate) fn line(value: &impl Serialize) -> serde_json::Result<String> {
    Ok(serde_json::to_string(value)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_stays_one_short_line() {
        for text in ["x\n", "\u{1}", "\u{1f512}"] {
            let said = Said { buyer: 1, at: u64::MAX, event: Event::failed(&text.repeat(10_000)) };
            let line = line(&said).unwrap();
            assert!(line.len() < 4_096);
            assert_eq!(line.matches('\n').count(), 1);
            assert_eq!(serde_json::from_str::<Said>(&line).unwrap(), said);
        }
    }
}
