//! One task of a worker: tries, holds, writes, gives up the hold, again and again.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use latchwork::{ErrorKind, Guard, LockManager, NotHeld, Released};
use latchwork_core::clock::boot_time;
use latchwork_core::{Lost, Mode, Moment};

use super::Shop;
use super::watch::{of_a_task, reason};
use crate::event::{Answer, How, What};
use crate::luck::Luck;
use crate::resource::Desk;

type Trouble = Box<dyn Error + Send + Sync>;

/// What a key is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Short holds by many tasks: handover at its busiest.
    Hot,
    /// Holds of up to two ttls, some of them with a `max_hold` that they pass.
    Long,
    /// Fair attempts only, mostly short.
    Fair,
}

struct Tasker {
    shop: Arc<Shop>,
    task: u32,
    luck: Luck,
    desk: Desk,
    fair_locks: LockManager,
    attempt: Arc<AtomicU64>,
    /// How many long holds it has tried for.
    longs: u64,
}

/// What became of an acquire.
enum Got {
    Hold(Guard),
    Nothing(&'static str),
}

/// Works until the shop closes.
pub(crate) async fn life(shop: Arc<Shop>, task: u32) -> Result<(), Trouble> {
    let attempt = Arc::new(AtomicU64::new(u64::MAX));
    let watch = of_a_task(&shop.orders, shop.log.clone(), task, attempt.clone());
    let mut this = Tasker {
        task,
        luck: Luck::of(shop.orders.seed, u64::from(task)),
        desk: Desk::new(&shop.orders.resource, shop.orders.name.as_str().into()),
        fair_locks: shop.locks.clone().observer(watch),
        attempt,
        longs: 0,
        shop,
    };
    while !*this.shop.closing.borrow() {
        this.turn().await?;
    }
    Ok(())
}

impl Tasker {
    fn note(&self, what: What) -> Moment {
        self.shop.log.note(Some(self.task), what)
    }

    async fn turn(&mut self) -> Result<(), Trouble> {
        let ttl = self.shop.orders.ttl;
        let kind = match self.task % 5 {
            0..3 => Kind::Hot,
            3 if self.shop.orders.fair => Kind::Fair,
            _ => Kind::Long,
        };
        let number = self.luck.below(self.shop.orders.keys as usize);
        let key: Arc<str> = match kind {
            Kind::Hot => format!("hot{number}"),
            Kind::Long => format!("long{number}"),
            Kind::Fair => format!("fair{number}"),
        }
        .into();
        let rest = match kind {
            Kind::Hot => self.luck.times(Duration::from_millis(1), 0.0..2.0),
            _ => self.luck.times(Duration::from_millis(1), 0.0..30.0),
        };
        self.shop.io.sleep(rest).await;
        // The first one of each task, so that no run is too short to see it.
        let overstays = kind == Kind::Long && self.longs.is_multiple_of(3);
        self.longs += u64::from(kind == Kind::Long);
        let length = match kind {
            _ if overstays => ttl,
            Kind::Hot => self.luck.times(Duration::from_millis(1), 0.0..6.0),
            Kind::Fair if self.luck.percent(85) => self.luck.times(ttl, 0.0..0.05),
            Kind::Fair => self.luck.times(ttl, 0.0..1.2),
            Kind::Long if self.luck.percent(50) => self.luck.times(ttl, 0.0..0.3),
            Kind::Long => self.luck.times(ttl, 0.0..self.shop.orders.longest),
        };
        let attempt = self.shop.attempts.fetch_add(1, Ordering::Relaxed);
        self.attempt.store(attempt, Ordering::Relaxed);
        match self.acquire(attempt, &key, kind, overstays).await {
            Got::Hold(guard) => self.hold(attempt, &key, guard, length).await,
            Got::Nothing(why) => {
                self.note(What::GaveUp { attempt, why: why.into() });
                Ok(())
            }
        }
    }

    async fn acquire(&mut self, attempt: u64, key: &Arc<str>, kind: Kind, overstays: bool) -> Got {
        let ttl = self.shop.orders.ttl;
        let fair = kind == Kind::Fair;
        let mutex =
            if fair { self.fair_locks.mutex(key).fair() } else { self.shop.locks.mutex(key) };
        let mutex = if overstays { mutex.max_hold(ttl / 2) } else { mutex };
        let waits = !self.luck.percent(5);
        let patience = self.luck.times(ttl, 0.2..4.0);
        let cancelled = self.luck.percent(8);
        let mode = Mode::Exclusive;
        self.note(What::Try { attempt, key: key.clone(), mode, fair, waits });
        let mut closing = self.shop.closing.clone();
        let answer = if !waits {
            mutex.try_acquire().await
        } else if cancelled {
            // The future is dropped in the middle: whatever it had got is given back behind us.
            tokio::select! {
                answer = mutex.acquire() => answer.map(Some),
                () = self.shop.io.sleep(patience / 8) => return Got::Nothing("cancelled"),
                _ = closing.wait_for(|closing| *closing) => return Got::Nothing("cancelled"),
            }
        } else {
            tokio::select! {
                answer = mutex.acquire_within(patience) => answer.map(Some),
                _ = closing.wait_for(|closing| *closing) => return Got::Nothing("cancelled"),
            }
        };
        match answer {
            Ok(Some(guard)) => {
                // What it counts on is read first, so that the stamp is no earlier than the truth.
                let what = What::Granted {
                    attempt,
                    token: guard.token().get(),
                    ttl: guard.ttl(),
                    valid_until: guard.valid_until(),
                };
                self.note(what);
                Got::Hold(guard)
            }
            Ok(None) => Got::Nothing("busy"),
            Err(error) if error.kind() == ErrorKind::TimedOut => Got::Nothing("timed_out"),
            Err(error) => {
                eprintln!("attempt {attempt} on {key}: {error}");
                Got::Nothing("failed")
            }
        }
    }

    async fn hold(
        &mut self,
        attempt: u64,
        key: &Arc<str>,
        guard: Guard,
        length: Duration,
    ) -> Result<(), Trouble> {
        let until = boot_time().plus(length);
        let worked = tokio::select! {
            // The work first: after a pause it must find out by asking, too.
            biased;
            worked = self.work(attempt, key, &guard, until) => worked?,
            lost = guard.lost() => Err(lost),
        };
        if let Err(lost) = worked {
            let Lost { reason: why, at: since } = lost;
            self.note(What::Lost { attempt, since, reason: reason(why).into() });
            // What a holder does that was stopped between its check and its write.
            self.write(attempt, key, guard.token().get()).await?;
            return Ok(());
        }
        self.see(attempt, &guard);
        if self.luck.percent(75) {
            self.note(What::Releasing { attempt, how: How::Release });
            let answer = match guard.release().await {
                Ok(Released::Yes) => Answer::Yes,
                Ok(Released::NotHeld) => Answer::NotHeld,
                Err(error) => {
                    eprintln!("release of attempt {attempt} on {key}: {error}");
                    Answer::Failed
                }
            };
            self.note(What::Released { attempt, answer });
        } else {
            self.note(What::Releasing { attempt, how: How::Drop });
            drop(guard);
        }
        Ok(())
    }

    /// Checks and writes in steps until the time is over, or until the check says no.
    async fn work(
        &mut self,
        attempt: u64,
        key: &Arc<str>,
        guard: &Guard,
        until: Moment,
    ) -> Result<Result<(), Lost>, Trouble> {
        let step = self.shop.orders.ttl / 8;
        // Who asks only once must be told by `lost`.
        let lazy = self.luck.percent(40);
        let mut asks = true;
        loop {
            let asked = boot_time();
            match guard.ensure_held() {
                _ if !asks => {}
                Ok(token) => {
                    let valid_until = guard.valid_until();
                    let task = Some(self.task);
                    self.shop.log.note_at(asked, task, What::Held { attempt, valid_until });
                    self.write(attempt, key, token.get()).await?;
                }
                Err(NotHeld::Suspect) => {
                    self.note(What::Suspect { attempt });
                }
                Err(NotHeld::Lost(lost)) => return Ok(Err(lost)),
            }
            asks = !lazy;
            let now = boot_time();
            if now >= until {
                return Ok(Ok(()));
            }
            self.shop.io.clock().sleep_until(until.min(now.plus(step))).await;
            self.see(attempt, guard);
        }
    }

    /// Notes down how long the hold is counted on now.
    fn see(&self, attempt: u64, guard: &Guard) {
        let valid_until = guard.valid_until();
        self.note(What::Renewed { attempt, valid_until });
    }

    async fn write(&mut self, attempt: u64, key: &str, token: u64) -> Result<(), Trouble> {
        let accepted = self.desk.write(key, attempt, token).await?;
        self.note(What::Wrote { attempt, token, accepted });
        Ok(())
    }
}
