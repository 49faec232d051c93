//! One task of a worker: tries, holds, writes, gives up the hold, again and again.

use std::error::Error;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use latchwork::Lost;
use latchwork::{ErrorKind, Guard, HoldState, LockManager, NotHeld};
use latchwork_store::clock::boot_time;
use latchwork_store::{Mode, Moment};

use super::Shop;
use super::watch::of_a_task;
use super::wish::{Held, Kind, Wish};
use crate::event::{Answer, How, What};
use crate::luck::Luck;
use crate::resource::Desk;

type Trouble = Box<dyn Error + Send + Sync>;

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

/// An attempt on one key, by its number.
struct Attempt {
    number: u64,
    key: Arc<str>,
}

/// What became of an acquire.
enum Got {
    Hold(Held),
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
        let kind = Kind::of(self.task, self.shop.locks.capabilities());
        let rest = match kind {
            Kind::Hot => self.luck.times(Duration::from_millis(1), 0.0..2.0),
            // Mostly it is done.
            Kind::Once => self.luck.times(ttl, 0.0..0.2),
            _ => self.luck.times(Duration::from_millis(1), 0.0..30.0),
        };
        self.shop.io.sleep(rest).await;
        // The first one of each task, so that no run is too short to see it.
        let overstays = kind == Kind::Long && self.longs.is_multiple_of(3);
        self.longs += u64::from(kind == Kind::Long);
        let locks = if kind == Kind::Fair { &self.fair_locks } else { &self.shop.locks };
        let owner = format!("{}/{}", self.shop.orders.name, self.task);
        let max_hold = overstays.then_some(ttl / 2);
        let wish = Wish::of(kind, self.shop.orders.keys, locks, &owner, max_hold, &mut self.luck);
        let length = match kind {
            _ if overstays => ttl,
            Kind::Hot => self.luck.times(Duration::from_millis(1), 0.0..6.0),
            Kind::Long if self.luck.percent(50) => self.luck.times(ttl, 0.0..0.3),
            Kind::Long => self.luck.times(ttl, 0.0..self.shop.orders.longest),
            _ if self.luck.percent(85) => self.luck.times(ttl, 0.0..0.05),
            _ => self.luck.times(ttl, 0.0..1.2),
        };
        let first = self.shop.attempts.fetch_add(wish.keys.len() as u64, Ordering::Relaxed);
        self.attempt.store(first, Ordering::Relaxed);
        let mut attempts: Vec<_> = (first..)
            .zip(&wish.keys)
            .map(|(number, key)| Attempt { number, key: key.clone() })
            .collect();
        match self.acquire(&mut attempts, &wish).await {
            Got::Hold(Held::One(guard))
                if kind == Kind::Shared && self.shop.locks.capabilities().upgrade =>
            {
                match self.change(attempts.remove(0), guard, length).await? {
                    Some((attempt, guard)) => self.hold(&[attempt], Held::One(guard), length).await,
                    None => Ok(()),
                }
            }
            Got::Hold(held) => self.hold(&attempts, held, length).await,
            Got::Nothing(_) if kind == Kind::Once => Ok(()),
            Got::Nothing(why) => {
                for attempt in attempts {
                    self.note(What::GaveUp { attempt: attempt.number, why: why.into() });
                }
                Ok(())
            }
        }
    }

    async fn acquire(&mut self, attempts: &mut [Attempt], wish: &Wish) -> Got {
        let ttl = self.shop.orders.ttl;
        let waits = !self.luck.percent(5);
        let patience = self.luck.times(ttl, 0.2..4.0);
        let cancelled = self.luck.percent(8);
        // The period of a run, and so its name, is not known before.
        if wish.kind != Kind::Once {
            self.note_tries(attempts, wish, waits);
        }
        let mut closing = self.shop.closing.clone();
        let answer = if !waits {
            wish.try_acquire().await
        } else if cancelled {
            // The future is dropped in the middle: whatever it had got is given back behind us.
            tokio::select! {
                answer = wish.acquire(None) => answer,
                () = self.shop.io.sleep(patience / 8) => return Got::Nothing("cancelled"),
                _ = closing.wait_for(|closing| *closing) => return Got::Nothing("cancelled"),
            }
        } else {
            tokio::select! {
                answer = wish.acquire(Some(patience)) => answer,
                _ = closing.wait_for(|closing| *closing) => return Got::Nothing("cancelled"),
            }
        };
        match answer {
            Ok(Some(held)) => {
                if let Some(start) = held.period_start() {
                    // Each period has a name of its own in the history.
                    let named = format!("{}@{}", attempts[0].key, start.as_millis());
                    attempts[0].key = named.into();
                    self.note_tries(attempts, wish, waits);
                }
                for (attempt, guard) in each(attempts, held.guards()) {
                    // What it counts on is read first, so that the stamp is no earlier than the
                    // truth.
                    let what = What::Granted {
                        attempt: attempt.number,
                        token: guard.token().get(),
                        ttl: guard.ttl(),
                        valid_until: self.shop.moment(guard.valid_until()),
                    };
                    self.note(what);
                }
                Got::Hold(held)
            }
            Ok(None) => Got::Nothing("busy"),
            Err(error) if error.kind() == ErrorKind::TimedOut => Got::Nothing("timed_out"),
            Err(error) => {
                eprintln!("attempt {} on {}: {error}", attempts[0].number, attempts[0].key);
                Got::Nothing("failed")
            }
        }
    }

    /// Upgrades and downgrades a hold of a read-write lock a few times. Each new hold is an attempt of its own, beside
    /// the one that it replaces, which goes on until then. `None` if it was lost meanwhile.
    async fn change(
        &mut self,
        mut attempt: Attempt,
        mut guard: Guard,
        length: Duration,
    ) -> Result<Option<(Attempt, Guard)>, Trouble> {
        for _ in 0..self.luck.below(4) {
            let before = boot_time().plus(length / 8);
            if let Err(lost) = self.keep_one(&attempt, &guard, before).await? {
                self.lose(slice::from_ref(&attempt), slice::from_ref(&guard), lost).await?;
                return Ok(None);
            }
            let upgrades = guard.mode() == Mode::Read;
            let number = self.shop.attempts.fetch_add(1, Ordering::Relaxed);
            let waits = !(upgrades && self.luck.percent(20));
            self.note(What::Try {
                attempt: number,
                key: attempt.key.clone(),
                mode: if upgrades { Mode::Write } else { Mode::Read },
                fair: false,
                waits,
                several: false,
                beside: Some(attempt.number),
            });
            let limit = self.luck.times(self.shop.orders.ttl, 0.1..1.5);
            let cut = if self.luck.percent(15) { limit / 4 } else { limit * 2 };
            let cut = boot_time().plus(cut);
            let mut released = None;
            let changed = if waits {
                let asked = async {
                    match upgrades {
                        true => guard.prepare_upgrade(Some(limit)).await,
                        false => guard.prepare_downgrade().await,
                    }
                };
                let answer = tokio::select! {
                    answer = asked => answer,
                    // The future is dropped in the middle. The new hold may have been granted by then.
                    worked = self.keep_one(&attempt, &guard, cut) => {
                        let worked = worked?;
                        let why = if worked.is_ok() { "cancelled" } else { "failed" };
                        self.note(What::GaveUp { attempt: number, why: why.into() });
                        let Err(lost) = worked else { continue };
                        self.lose(slice::from_ref(&attempt), slice::from_ref(&guard), lost).await?;
                        return Ok(None);
                    }
                };
                let exchanged = answer.and_then(|exchange| guard.exchange(exchange));
                exchanged.map(|future| released.insert(future)).map(|_| true)
            } else {
                guard.try_upgrade().await.map(|token| token.is_some())
            };
            let why = match changed {
                Ok(true) => {
                    let (token, ttl) = (guard.token().get(), guard.ttl());
                    let valid_until = self.shop.moment(guard.valid_until());
                    self.note(What::Granted { attempt: number, token, ttl, valid_until });
                    // Of a downgrade, nothing has been sent yet.
                    self.note(What::Releasing { attempt: attempt.number, how: How::Drop });
                    if let Some(released) = released.filter(|_| self.luck.percent(50)) {
                        self.shop.io.spawn(released);
                    }
                    attempt.number = number;
                    continue;
                }
                Ok(false) => "busy",
                Err(error) => match error.kind() {
                    ErrorKind::TimedOut => "timed_out",
                    ErrorKind::UpgradeConflict => "conflict",
                    _ => {
                        eprintln!("attempt {number} on {}: {error}", attempt.key);
                        "failed"
                    }
                },
            };
            self.note(What::GaveUp { attempt: number, why: why.into() });
        }
        Ok(Some((attempt, guard)))
    }

    fn note_tries(&self, attempts: &[Attempt], wish: &Wish, waits: bool) {
        for Attempt { number, key } in attempts {
            self.note(What::Try {
                attempt: *number,
                key: key.clone(),
                mode: wish.mode,
                fair: wish.kind == Kind::Fair,
                waits,
                several: attempts.len() > 1,
                beside: None,
            });
        }
    }

    async fn hold(
        &mut self,
        attempts: &[Attempt],
        held: Held,
        length: Duration,
    ) -> Result<(), Trouble> {
        let until = boot_time().plus(length);
        if let Err(lost) = self.keep(attempts, held.guards(), held.lost(), until).await? {
            return self.lose(attempts, held.guards(), lost).await;
        }
        self.see(attempts, held.guards());
        let how = if self.luck.percent(75) { How::Release } else { How::Drop };
        for attempt in attempts {
            self.note(What::Releasing { attempt: attempt.number, how });
        }
        if how == How::Drop {
            drop(held);
            return Ok(());
        }
        let answer = match held.release().await {
            Ok(()) => Answer::Yes,
            Err(error) if error.kind() == ErrorKind::Lost => Answer::NotHeld,
            Err(error) => {
                eprintln!(
                    "release of attempt {} on {}: {error}",
                    attempts[0].number, attempts[0].key
                );
                Answer::Failed
            }
        };
        for attempt in attempts {
            self.note(What::Released { attempt: attempt.number, answer });
        }
        Ok(())
    }

    async fn keep_one(
        &mut self,
        attempt: &Attempt,
        guard: &Guard,
        until: Moment,
    ) -> Result<Result<(), Lost>, Trouble> {
        self.keep(slice::from_ref(attempt), slice::from_ref(guard), guard.lost(), until).await
    }

    /// Works until then, or until the loss of the holds.
    async fn keep(
        &mut self,
        attempts: &[Attempt],
        guards: &[Guard],
        lost: impl Future<Output = Lost>,
        until: Moment,
    ) -> Result<Result<(), Lost>, Trouble> {
        tokio::select! {
            // The work first: after a pause it must find out by asking, too.
            biased;
            worked = self.work(attempts, guards, until) => worked,
            lost = lost => Ok(Err(lost)),
        }
    }

    /// Notes down a loss.
    async fn lose(
        &mut self,
        attempts: &[Attempt],
        guards: &[Guard],
        lost: Lost,
    ) -> Result<(), Trouble> {
        let Lost { reason: why, at: since, .. } = lost;
        let since = self.shop.moment(since);
        for (attempt, guard) in each(attempts, guards) {
            // Of several locks the loss of one is the loss of all.
            let (reason, number) = (why.word().into(), attempt.number);
            self.note(What::Lost { attempt: number, since, reason });
            // What a holder does that was stopped between its check and its write.
            self.write(attempt, guard).await?;
        }
        Ok(())
    }

    /// Checks and writes in steps until the time is over, or until the check says no.
    async fn work(
        &mut self,
        attempts: &[Attempt],
        guards: &[Guard],
        until: Moment,
    ) -> Result<Result<(), Lost>, Trouble> {
        let step = self.shop.orders.ttl / 8;
        // Who asks only once must be told by `lost`.
        let lazy = self.luck.percent(40);
        let mut asks = true;
        loop {
            for (attempt, guard) in each(attempts, guards).filter(|_| asks) {
                let asked = boot_time();
                match guard.ensure_held() {
                    Ok(_) => {
                        let valid_until = self.shop.moment(guard.valid_until());
                        let what = What::Held { attempt: attempt.number, valid_until };
                        self.shop.log.note_at(asked, Some(self.task), what);
                        self.write(attempt, guard).await?;
                    }
                    Err(NotHeld::Lost(lost)) => return Ok(Err(lost)),
                    Err(_) => {
                        self.note(What::Suspect { attempt: attempt.number });
                    }
                }
            }
            asks = !lazy;
            let now = boot_time();
            if now >= until {
                return Ok(Ok(()));
            }
            self.shop.io.clock().sleep_until(until.min(now.plus(step))).await;
            self.see(attempts, guards);
        }
    }

    /// Notes down how long the holds are counted on now.
    fn see(&self, attempts: &[Attempt], guards: &[Guard]) {
        for (attempt, guard) in each(attempts, guards) {
            let valid_until = self.shop.moment(guard.valid_until());
            self.note(What::Renewed { attempt: attempt.number, valid_until });
            if guard.state() == HoldState::Suspect {
                self.note(What::Suspect { attempt: attempt.number });
            }
        }
    }

    async fn write(&mut self, attempt: &Attempt, guard: &Guard) -> Result<(), Trouble> {
        let (token, attempt, key) = (guard.token().get(), attempt.number, &attempt.key);
        let accepted = self.desk.write(key, attempt, token).await?;
        self.note(What::Wrote { attempt, token, accepted });
        Ok(())
    }
}

/// The name of the lock, without its namespace.
fn name_of(guard: &Guard) -> &str {
    let key = guard.key().as_str();
    key.rsplit_once(':').map_or(key, |(_, name)| name)
}

/// Each guard with its attempt; the guards are in an order of their own.
fn each<'a>(
    attempts: &'a [Attempt],
    guards: &'a [Guard],
) -> impl Iterator<Item = (&'a Attempt, &'a Guard)> {
    guards.iter().filter_map(|guard| {
        let name = |attempt: &&Attempt| attempt.key.split('@').next() == Some(name_of(guard));
        Some((attempts.iter().find(name)?, guard))
    })
}
