//! What a buyer does: enter, read the stock, pack a unit, write one less, leave.

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::time::Duration;

use latchwork::{ErrorKind, FencingToken, Guard, HoldState, LockManager};
use latchwork_store::clock::boot_time;
use latchwork_store::{Moment, random_between};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::sleep;

use crate::shop::Shop;
use crate::words::{EXPIRY, Event, Order, Said, Scene};

/// How long a unit takes to pack.
const QUICK: Duration = Duration::from_millis(10);

/// The first unit and the one in the middle take longer than the lock of the articles lasts.
pub(crate) const SLOW: Duration = EXPIRY.saturating_add(Duration::from_millis(200));

/// How long a buyer waits for the lock of Latchwork.
const ACQUIRE_LIMIT: Duration = Duration::from_secs(60);

/// The pause of those who ask for the lock of the articles again and again.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(15));

/// Anything that keeps a buyer from buying.
pub(crate) type Trouble = Box<dyn Error>;

/// Where a buyer speaks and is spoken to.
pub(crate) trait Desk {
    /// Says something.
    fn say(&self, said: &Said);

    /// Waits for a word.
    async fn word(&self) -> Result<String, Trouble>;
}

/// The desk of a buyer that is a task of the demo.
pub(crate) struct Channels {
    pub(crate) says: UnboundedSender<Said>,
    pub(crate) hears: RefCell<UnboundedReceiver<String>>,
}

impl Desk for Channels {
    fn say(&self, said: &Said) {
        // Nobody listens any more when the demo ends early.
        let _ = self.says.send(said.clone());
    }

    async fn word(&self) -> Result<String, Trouble> {
        let next = std::future::poll_fn(|cx| self.hears.borrow_mut().poll_recv(cx)).await;
        next.ok_or_else(|| "the demo has ended".into())
    }
}

/// A buyer in a scene.
pub(crate) struct Buyer<'a, D> {
    order: &'a Order,
    shop: &'a dyn Shop,
    /// Where the lock of Latchwork is, in the scenes that have one.
    locks: Option<&'a LockManager>,
    desk: D,
    /// How often it has come: the marks of its locks differ.
    visits: Cell<u32>,
    waits_at_till: Cell<bool>,
}

/// What a buyer holds while it is at the stock.
enum Hold {
    Nothing,
    /// The lock of the articles: what was written into it, and when that was known.
    Mark {
        mark: String,
        since: Moment,
    },
    Lease(Guard),
}

impl<'a, D: Desk> Buyer<'a, D> {
    pub(crate) fn new(
        order: &'a Order,
        shop: &'a dyn Shop,
        locks: Option<&'a LockManager>,
        desk: D,
    ) -> Self {
        let (visits, waits_at_till) = (Cell::new(0), Cell::new(order.waits_at_till));
        Self { order, shop, locks, desk, visits, waits_at_till }
    }

    /// Buys until nothing is left.
    pub(crate) async fn buy(&self) -> Result<(), Trouble> {
        self.say(Event::Ready);
        self.desk.word().await?;
        loop {
            self.visits.set(self.visits.get() + 1);
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
        let order = self.order;
        let (hold, token) = match order.scene {
            Scene::NoLock => (Hold::Nothing, None),
            Scene::Naive => {
                let mark = format!("{}/{}", order.buyer, self.visits.get());
                while !self.shop.lock(&mark, EXPIRY)? {
                    sleep(random_between(ASK_AGAIN.0, ASK_AGAIN.1)).await;
                }
                (Hold::Mark { mark, since: boot_time() }, None)
            }
            Scene::Locked | Scene::Fenced => {
                let locks = self.locks.ok_or("no store to lock in")?;
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
    async fn pay(&self, hold: &Hold, left: u32) -> Result<(), Trouble> {
        let Hold::Lease(guard) = hold else {
            self.shop.write(left)?;
            self.say(Event::Sold { left });
            return Ok(());
        };
        // Without the lock there is nothing to sell; how it ended is said at the door.
        let Ok(token) = guard.ensure_held() else { return Ok(()) };
        if self.waits_at_till.take() {
            self.say(Event::AtTill);
            self.desk.word().await?;
        }
        if self.order.scene == Scene::Fenced {
            return self.pay_with(token, left);
        }
        self.shop.write(left)?;
        self.say(Event::Sold { left });
        Ok(())
    }

    fn pay_with(&self, token: FencingToken, left: u32) -> Result<(), Trouble> {
        match self.shop.write_fenced(left, token)? {
            Ok(()) => self.say(Event::Sold { left }),
            Err(fenced) => {
                let (token, newest) = (fenced.refused.get(), fenced.newest.get());
                self.say(Event::Refused { left, token, newest });
            }
        }
        Ok(())
    }

    async fn leave(&self, hold: Hold) -> Result<(), Trouble> {
        let at = boot_time();
        let left = |expired, freed| Event::Left { expired, freed };
        match hold {
            Hold::Nothing => self.say_at(at, left(false, false)),
            Hold::Mark { mark, since } => {
                let found = self.shop.unlock()?;
                let own = found.as_ref() == Some(&mark);
                // The server counted from earlier, so this is no more than there was.
                let expired = !own && at.since(since) >= EXPIRY;
                self.say_at(at, left(expired, found.is_some() && !own));
            }
            Hold::Lease(guard) => {
                match guard.state() {
                    // Who was stopped notices late what was over then.
                    HoldState::Lost(lost) => {
                        self.say_at(lost.at.min(guard.valid_until()), Event::Lost);
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
        self.say_at(boot_time(), event);
    }

    fn say_at(&self, at: Moment, event: Event) {
        self.desk.say(&Said { buyer: self.order.buyer, at, event });
    }
}
