//! What a buyer does: enter, read the stock, pack a unit, write one less, leave.

use std::error::Error;
use std::io::{self, PipeReader, PipeWriter, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use latchwork::{ErrorKind, Guard, HoldState, LockManager};
use latchwork_store::random_between;
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::unix::pipe::Receiver;
use tokio::time::sleep;

use crate::shop::{self, Shop};
use crate::words::{EXPIRY, Event, Order, Said, Scene, line, now};

/// The first argument that makes this binary a buyer.
pub(crate) const ROLE: &str = "__buyer";

/// How long a unit takes to pack.
const QUICK: Duration = Duration::from_millis(10);

/// The first unit and the one in the middle take longer than the lock of the articles lasts.
pub(crate) const SLOW: Duration = EXPIRY.saturating_add(Duration::from_millis(200));

/// How long a buyer waits for the lock of Latchwork.
const ACQUIRE_LIMIT: Duration = Duration::from_secs(60);

/// The pause of those who ask for the lock of the articles again and again.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(15));

/// Anything that keeps a buyer from buying.
pub(crate) type Trouble = Box<dyn Error + Send + Sync>;

/// Lines that come by a pipe.
pub(crate) type Hears = Lines<BufReader<Receiver>>;

pub(crate) fn hears(pipe: PipeReader) -> io::Result<Hears> {
    Ok(BufReader::new(Receiver::from_owned_fd(pipe.into())?).lines())
}

/// A buyer as a process of its own. Its order is the first line of its standard input, its standard
/// output the pipe that all buyers share. It ends with the demo, also when it is stopped at that time.
pub(crate) async fn main() -> Result<(), Trouble> {
    let _ = rustix::thread::set_name(c"latchwork-buyer");
    // If the demo died before this, the next line is not there.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let mut hears = hears(io::stdin().as_fd().try_clone_to_owned()?.into())?;
    let says = io::stdout().as_fd().try_clone_to_owned()?.into();
    let order: Order = serde_json::from_str(&word(&mut hears).await?)?;
    let shop = shop::open(order.place.as_ref(), &order.store)?;
    let locks = match order.scene.has_lease() {
        true => Some(latchwork::connect(&order.store).await?),
        false => None,
    };
    Buyer::new(order, shop, locks.clone(), hears, says).run().await;
    if let Some(locks) = &locks {
        locks.close().await;
    }
    Ok(())
}

async fn word(hears: &mut Hears) -> Result<String, Trouble> {
    hears.next_line().await?.ok_or_else(|| "the demo has ended".into())
}

/// A buyer in a scene.
pub(crate) struct Buyer {
    order: Order,
    shop: Arc<dyn Shop>,
    /// Where the lock of Latchwork is, in the scenes that have one.
    locks: Option<LockManager>,
    hears: Hears,
    says: PipeWriter,
    /// How often it has come: the marks of its locks differ.
    visits: u32,
}

/// What a buyer holds while it is at the stock.
enum Hold {
    Nothing,
    /// The lock of the articles: what was written into it, and when that was known.
    Mark(String, u64),
    Lease(Guard),
}

impl Buyer {
    pub(crate) fn new(
        order: Order,
        shop: Arc<dyn Shop>,
        locks: Option<LockManager>,
        hears: Hears,
        says: PipeWriter,
    ) -> Self {
        Self { order, shop, locks, hears, says, visits: 0 }
    }

    pub(crate) async fn run(mut self) {
        if let Err(trouble) = self.buy().await {
            self.say(Event::failed(&trouble.to_string()));
        }
    }

    /// Buys until nothing is left.
    async fn buy(&mut self) -> Result<(), Trouble> {
        self.say(Event::Ready);
        word(&mut self.hears).await?;
        loop {
            self.visits += 1;
            let hold = self.enter().await?;
            let left = self.shop.read()?;
            if left > 0 {
                sleep(self.packing(left)).await;
                self.pay(&hold, left - 1).await?;
            }
            self.leave(hold).await?;
            if left == 0 {
                self.say(Event::Done);
                return Ok(());
            }
        }
    }

    fn packing(&self, left: u32) -> Duration {
        let stock = self.order.stock;
        if left == stock || left == stock.div_ceil(2) { SLOW } else { QUICK }
    }

    async fn enter(&self) -> Result<Hold, Trouble> {
        let order = &self.order;
        let (hold, token) = match order.scene {
            Scene::NoLock => (Hold::Nothing, None),
            Scene::Naive => {
                let mark = format!("{}/{}", order.buyer, self.visits);
                while !self.shop.lock(&mark, EXPIRY)? {
                    sleep(random_between(ASK_AGAIN.0, ASK_AGAIN.1)).await;
                }
                (Hold::Mark(mark, now()), None)
            }
            Scene::Locked | Scene::Fenced => {
                let locks = self.locks.as_ref().ok_or("no store to lock in")?;
                let mut mutex = locks.mutex(&order.lock).ttl(order.ttl);
                if let Some(longest) = order.max_hold {
                    mutex = mutex.max_hold(longest);
                }
                let guard = mutex.acquire_within(ACQUIRE_LIMIT).await?;
                let token = guard.token().get();
                (Hold::Lease(guard), Some(token))
            }
        };
        self.say(Event::Entered { token });
        Ok(hold)
    }

    /// Writes what is left, after the last look at the lock.
    async fn pay(&mut self, hold: &Hold, left: u32) -> Result<(), Trouble> {
        if let Hold::Lease(guard) = hold {
            // Without the lock there is nothing to sell; how it ended is said at the door.
            let Ok(token) = guard.ensure_held() else { return Ok(()) };
            if std::mem::take(&mut self.order.waits_at_till) {
                self.say(Event::AtTill);
                word(&mut self.hears).await?;
            }
            if self.order.scene == Scene::Fenced
                && let Err(fenced) = self.shop.write_fenced(left, token)?
            {
                let (token, newest) = (fenced.refused.get(), fenced.newest.get());
                self.say(Event::Refused { left, token, newest });
                return Ok(());
            }
        }
        if self.order.scene != Scene::Fenced {
            self.shop.write(left)?;
        }
        self.say(Event::Sold { left });
        Ok(())
    }

    async fn leave(&self, hold: Hold) -> Result<(), Trouble> {
        let at = now();
        let left = |expired, freed| Event::Left { expired, freed };
        match hold {
            Hold::Nothing => self.say_at(at, left(false, false)),
            Hold::Mark(mark, since) => {
                let found = self.shop.unlock()?;
                let own = found.as_ref() == Some(&mark);
                // The server counted from earlier, so this is no more than there was.
                let expired = !own && u128::from(at - since) >= EXPIRY.as_nanos();
                self.say_at(at, left(expired, found.is_some() && !own));
            }
            Hold::Lease(guard) => {
                match guard.state() {
                    // Who was stopped notices late what was over then.
                    HoldState::Lost(lost) => {
                        let over = lost.at.min(guard.valid_until());
                        self.say_at(over.as_nanos(), Event::Lost);
                    }
                    _ => self.say_at(at, left(false, false)),
                }
                match guard.release().await {
                    // That a lock was lost is what the scene shows, and what the fence is for.
                    Err(error) if error.kind() == ErrorKind::Lost => {}
                    released => released?,
                }
            }
        }
        Ok(())
    }

    fn say(&self, event: Event) {
        self.say_at(now(), event);
    }

    /// One write for a line, so that lines of several buyers do not mix. If nobody reads, the demo has ended.
    fn say_at(&self, at: u64, event: Event) {
        let said = line(&Said { buyer: self.order.buyer, at, event }).unwrap_or_default();
        let _ = (&self.says).write_all(said.as_bytes());
    }
}
