//! A read hold becomes a write hold, and back.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::hold::engine::Engine;
use crate::hold::guard::{Guard, run_until};
use crate::hold::lease::HoldState;
use crate::hold::reaper::{Job, Withdrawal, tell_released};
use crate::hold::watched::Watched;
use crate::rules::options::Plan;
use crate::runtime::call::Unpolled;
use crate::wait::acquire::{Admission, Beside, Request, call_acquire};
use crate::wait::patience::Patience;
use latchwork_store::{
    Blocked, Cause, Claim, Error, ErrorKind, FencingToken, Key, Linger, Lost, LostReason, Mode,
    Resize,
};

/// A granted hold that is to replace the one of a guard ([`Guard::exchange`]).
///
/// Dropping it releases the new hold in the background; the guard keeps the one that it has.
#[must_use = "dropping it leaves the guard as it is"]
pub struct Exchange {
    granted: Guard,
    from: Arc<Watched>,
}

impl Exchange {
    /// Returns the fencing token that the guard gets.
    pub fn token(&self) -> FencingToken {
        self.granted.token()
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").field("granted", &self.granted).finish_non_exhaustive()
    }
}

impl Guard {
    /// Upgrades a read hold to a write hold, waiting without a limit for the other readers to
    /// release. Returns the new token, which is larger than the one before.
    ///
    /// The read hold lasts until the write hold is granted, so nobody can write in between: what
    /// was read is still true. No other reader is admitted while the upgrade waits. From the grant
    /// on the guard is a writer's: [`token`](Guard::token) returns the new token.
    ///
    /// One reader of a key can upgrade at a time, because two would wait for each other. The second
    /// one gets [`UpgradeConflict`](ErrorKind::UpgradeConflict) at once.
    ///
    /// Upgrades of several keys can wait for each other for ever. Upgrade the keys in one order, or
    /// use [`upgrade_within`](Guard::upgrade_within).
    ///
    /// [`max_hold`](crate::Lock::max_hold) counts from the acquire on. An observer receives the
    /// grant of the write hold, then the release of the read hold.
    ///
    /// # Errors
    ///
    /// After each of them but `Lost`, the guard has its read hold as before.
    ///
    /// - [`UpgradeConflict`](ErrorKind::UpgradeConflict) if another reader is upgrading, or a client
    ///   of another kind (Curator, Go's `concurrency`) waits for this hold, or one that came before
    ///   it and was overtaken (etcd, ZooKeeper); the message names it. Release this guard, then
    ///   acquire the lock for writing.
    /// - [`Lost`](ErrorKind::Lost) if the read hold was lost meanwhile.
    /// - `Invalid` for a guard that is no reader's; `Unsupported` if the store cannot do it: Redlock,
    ///   and plain mode of Redis.
    /// - As for [`Lock::acquire`](crate::Lock::acquire).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future withdraws the upgrade, and the guard keeps its read hold. A future that
    /// was woken and is not polled for two seconds withdraws it too, and asks again when it is
    /// polled.
    ///
    /// # Examples
    ///
    /// ```
    /// # use latchwork::{Driver, LockManager};
    /// # use latchwork::store::MemoryBackend;
    /// # let driver = Driver::start().unwrap();
    /// # let locks = LockManager::new(MemoryBackend::new(driver.io()), driver);
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let page = locks.rwlock("page/7");
    /// let mut guard = page.read().acquire().await?;
    /// let token = guard.token();
    /// // What was read shows that something is to be written:
    /// assert!(guard.upgrade().await? > token);
    /// assert!(page.read().try_acquire().await?.is_none());
    /// // Other readers may come in again, and no writer:
    /// guard.downgrade().await?;
    /// assert!(page.read().try_acquire().await?.is_some());
    /// # Ok::<(), latchwork::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn upgrade(&mut self) -> Result<FencingToken, Error> {
        self.upgrade_with(Patience::Endless).await
    }

    /// Upgrades a read hold as [`upgrade`](Guard::upgrade) does, waiting at most `limit`.
    ///
    /// # Errors
    ///
    /// `TimedOut` if other readers still held the lock; the guard keeps its read hold. Else as for
    /// [`upgrade`](Guard::upgrade).
    ///
    /// # Cancel safety
    ///
    /// As for [`upgrade`](Guard::upgrade).
    pub async fn upgrade_within(&mut self, limit: Duration) -> Result<FencingToken, Error> {
        self.upgrade_with(Patience::Within(limit)).await
    }

    /// Upgrades a read hold if no other reader has the lock, without waiting. Returns `None` if one
    /// has; the guard keeps its read hold.
    ///
    /// # Errors
    ///
    /// As for [`upgrade`](Guard::upgrade), and `Unreachable` at once if the store does not answer.
    ///
    /// # Cancel safety
    ///
    /// As for [`upgrade`](Guard::upgrade).
    pub async fn try_upgrade(&mut self) -> Result<Option<FencingToken>, Error> {
        match self.prepare(&UPGRADE, Patience::Once).await? {
            Some(exchange) => self.upgraded(exchange).map(Some),
            None => Ok(None),
        }
    }

    /// Downgrades a write hold to a read hold. Returns the new token, which is larger than the one
    /// before.
    ///
    /// It does not wait for others, even if writers do. The write hold lasts until the read hold is
    /// granted, so nobody can write in between. Other readers are admitted when it returns, unless
    /// a writer waits ahead of them.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if the write hold was lost. `Invalid` for a guard that is no
    /// writer's of a read-write lock; [`UpgradeConflict`](ErrorKind::UpgradeConflict) if a client of
    /// another kind waits for the write hold; `Unsupported` and `Unreachable` as for
    /// [`upgrade`](Guard::upgrade). After each of them but `Lost`, the guard has its write hold as
    /// before.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the guard has one of the two holds: see its
    /// [`mode`](Guard::mode). A hold that is no longer its own is released in the background.
    pub async fn downgrade(&mut self) -> Result<FencingToken, Error> {
        let exchange = self.prepare_downgrade().await?;
        self.exchange(exchange)?.await;
        Ok(self.token())
    }

    /// Returns the description of the holder that other clients see.
    pub fn holder(&self) -> &str {
        &self.hold().0.lease.claim.holder.text
    }

    /// Returns the mode of the hold, which an upgrade or a downgrade changes.
    pub fn mode(&self) -> Mode {
        self.hold().0.lease.claim.mode
    }

    /// Waits for an upgrade without borrowing the guard, for a caller that shares it, such as
    /// another language. The guard changes with [`exchange`](Guard::exchange).
    ///
    /// It waits at most `limit`, if there is one.
    ///
    /// # Errors
    ///
    /// As for [`upgrade`](Guard::upgrade) and [`upgrade_within`](Guard::upgrade_within).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future withdraws the upgrade.
    pub fn prepare_upgrade(
        &self,
        limit: Option<Duration>,
    ) -> impl Future<Output = Result<Exchange, Error>> + Send + use<> {
        let patience = limit.map_or(Patience::Endless, Patience::Within);
        prepared(self.prepare(&UPGRADE, patience))
    }

    /// Asks for a downgrade without borrowing the guard, as
    /// [`prepare_upgrade`](Guard::prepare_upgrade).
    ///
    /// # Errors
    ///
    /// As for [`downgrade`](Guard::downgrade).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the guard as it is.
    pub fn prepare_downgrade(
        &self,
    ) -> impl Future<Output = Result<Exchange, Error>> + Send + use<> {
        prepared(self.prepare(&DOWNGRADE, Patience::Endless))
    }

    /// Replaces the hold of this guard with the one that
    /// [`prepare_upgrade`](Guard::prepare_upgrade) or
    /// [`prepare_downgrade`](Guard::prepare_downgrade) returned, and releases the old one.
    ///
    /// The future completes when the store has answered that release, or did not in time. If it is
    /// dropped, the release continues in the background.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if the hold of this guard was lost meanwhile, and `Invalid` for
    /// what another guard has prepared. The new hold is released in the background.
    pub fn exchange(
        &mut self,
        exchange: Exchange,
    ) -> Result<impl Future<Output = ()> + Send + use<>, Error> {
        let (engine, token) = (self.engine().clone(), self.token());
        let Exchange { granted, from } = exchange;
        let key = granted.key().clone();
        engine.check_here(Some(&key))?;
        let change = if granted.mode() == Mode::Write { &UPGRADE } else { &DOWNGRADE };
        if !Arc::ptr_eq(&from, self.hold().0) {
            let message = format!("{}: it was prepared for another hold", change.name);
            return Err(refused(&engine, &key, ErrorKind::Invalid, message)
                .with_next_step("call exchange once, on the guard that has prepared it"));
        }
        let ended = match self.state() {
            HoldState::Lost(lost) => Err(lost),
            HoldState::Held | HoldState::Suspect => self.replace(granted),
        };
        let withdrawal = ended.map_err(|lost| change.lost(&engine, &key, token, lost))?;
        Ok(settle(engine, withdrawal))
    }

    async fn upgrade_with(&mut self, patience: Patience) -> Result<FencingToken, Error> {
        let exchange = prepared(self.prepare(&UPGRADE, patience)).await?;
        self.upgraded(exchange)
    }

    /// Nothing waits after the grant, so a future that was dropped has changed nothing.
    fn upgraded(&mut self, exchange: Exchange) -> Result<FencingToken, Error> {
        drop(self.exchange(exchange)?);
        Ok(self.token())
    }

    /// Asks for the hold that is to replace this one; `None` if a single try found others in the way.
    fn prepare(
        &self,
        change: &'static Change,
        patience: Patience,
    ) -> impl Future<Output = Result<Option<Exchange>, Error>> + Send + use<> {
        let (engine, from, lost) =
            (self.engine().clone(), self.hold().0.clone(), self.watch_loss());
        let token = self.token();
        async move {
            let key = &from.lease.claim.key;
            engine.check_open(Some(key))?;
            change.check(&engine, &from)?;
            let op_timeout = from.lease.rules.op_timeout(from.lease.claim.ttl);
            engine.io.within(op_timeout, from.lease.is_alone()).await;
            let (request, start) = (change.request(&from), engine.io.now());
            let call = call_acquire(&engine, request, patience, start);
            let answer = match run_until(lost, call).await {
                Ok(answer) => engine.told(answer, Some(key)),
                Err(_) if !engine.is_here() => Err(engine.forked(Some(key))),
                Err(lost) => return Err(change.lost(&engine, key, token, lost)),
            };
            match answer.map_err(|error| change.failed(error))? {
                Admission::Granted(granted) => Ok(Some(Exchange { granted, from: from.clone() })),
                Admission::Refused(Some(Blocked { cause: Cause::Gone, .. })) => {
                    if let Some(successor) = from.lease.successor() {
                        // Another call has changed the guard meanwhile.
                        change.check(&engine, &successor)?;
                    }
                    // The guard has to learn it now, not by its next renewal.
                    engine.watchdog.taken_away(from.lease.claim.id);
                    let lost = Lost::new(LostReason::Taken, engine.io.now());
                    Err(change.lost(&engine, key, token, lost))
                }
                Admission::Refused(Some(Blocked { cause: Cause::Upgrade, holder, .. })) => {
                    let holder = holder.map_or("another reader".into(), |it| it.shown());
                    let message = format!("{holder} is upgrading its hold, and waits for this one");
                    Err(refused(&engine, key, ErrorKind::UpgradeConflict, message)
                        .with_next_step("release this hold, then acquire the lock for writing"))
                }
                Admission::Refused(Some(Blocked { cause: Cause::Earlier, holder, .. })) => {
                    let holder = holder.map_or("another client".into(), |it| it.shown());
                    let message = format!("{holder} waits for this hold, and came before it");
                    Err(refused(&engine, key, ErrorKind::UpgradeConflict, message)
                        .with_next_step("release this hold, then acquire the lock for writing"))
                }
                Admission::Refused(Some(Blocked { cause: Cause::Foreign, holder, .. })) => {
                    let holder = holder.map_or("another client".into(), |it| it.shown());
                    let message = format!(
                        "{holder} waits for this hold, and cannot be overtaken: it is of another kind"
                    );
                    Err(refused(&engine, key, ErrorKind::UpgradeConflict, message)
                        .with_next_step(change.instead))
                }
                Admission::Refused(_) => Ok(None),
            }
        }
    }
}

/// The hold that was asked for with the patience to wait for it.
async fn prepared(
    preparing: impl Future<Output = Result<Option<Exchange>, Error>>,
) -> Result<Exchange, Error> {
    Ok(preparing.await?.expect("only a single try is refused without an error"))
}

/// Releases the hold that was replaced.
async fn settle(engine: Arc<Engine>, withdrawal: Withdrawal) {
    let mut withdrawal = Some(withdrawal);
    let releasing = engine.call(Unpolled::GoesOn, |_| {
        let (engine, withdrawal) = (engine.clone(), withdrawal.take());
        async move {
            let Some(mut withdrawal) = withdrawal else { return };
            let Job { claim, rules, held, .. } = withdrawal.job();
            let (rules, held, key) = (rules.clone(), *held, claim.key.clone());
            let op_timeout = rules.op_timeout(claim.ttl);
            // Without an answer the reaper asks again.
            if engine.reaper.release_once(claim, Linger::None, op_timeout).await.is_ok() {
                withdrawal.settled();
                tell_released(&rules, &key, held);
            }
        }
    });
    // In a child of the process there is nothing to release.
    let _ = releasing.await;
}

/// How a hold changes.
struct Change {
    name: &'static str,
    done: &'static str,
    from: Mode,
    to: Mode,
    /// The guard that can change so.
    fitting: &'static str,
    /// What to do at a store that cannot.
    instead: &'static str,
}

static UPGRADE: Change = Change {
    name: "upgrade",
    done: "upgraded",
    from: Mode::Read,
    to: Mode::Write,
    fitting: "upgrade only a guard that holds a read-write lock for reading",
    instead: "release the lock, acquire it for writing, and read again: another writer may have come first",
};

static DOWNGRADE: Change = Change {
    name: "downgrade",
    done: "downgraded",
    from: Mode::Write,
    to: Mode::Read,
    fitting: "downgrade only a guard that holds a read-write lock for writing",
    instead: "release the lock, acquire it for reading, and read again: another writer may have come first",
};

impl Change {
    fn check(&self, engine: &Engine, from: &Watched) -> Result<(), Error> {
        let Claim { key, mode, .. } = &from.lease.claim;
        if *mode != self.from {
            let (held, wanted) = (how(*mode), how(self.from));
            let message = format!("{}: the lock is held {held}, not {wanted}", self.name);
            return Err(
                refused(engine, key, ErrorKind::Invalid, message).with_next_step(self.fitting)
            );
        }
        if !engine.capabilities.upgrade {
            let message = format!(
                "{}: this store cannot replace a hold {} without a gap",
                self.name,
                how(self.from)
            );
            return Err(
                refused(engine, key, ErrorKind::Unsupported, message).with_next_step(self.instead)
            );
        }
        Ok(())
    }

    /// The request for the new hold.
    fn request(&self, from: &Watched) -> Request {
        let (claim, rules) = (&from.lease.claim, from.lease.rules.clone());
        let holder = claim.holder.clone().with(|it| it.detached = 0);
        Request {
            key: claim.key.clone(),
            mode: self.to,
            fair: false,
            stops_at_linger: false,
            resize: Resize::Never,
            beside: Some(Beside { id: claim.id, turn: from.lease.replacing() }),
            plan: Plan { ttl: claim.ttl, holder, rules },
        }
    }

    /// The error of a change that failed while the hold went on.
    fn failed(&self, error: Error) -> Error {
        if !matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Unreachable) {
            return error;
        }
        let still = format!("the lock is still held {}", how(self.from));
        let step = match error.next_step() {
            Some(step) => format!("{still}; {step}"),
            None => still,
        };
        error.with_next_step(step)
    }

    /// The error of a change whose hold was lost before.
    fn lost(&self, engine: &Engine, key: &Key, token: FencingToken, lost: Lost) -> Error {
        let message = format!("the lock was lost before it was {}: {lost}", self.done);
        refused(engine, key, ErrorKind::Lost, message).with_lost(lost).with_next_step(format!(
            "check what was done under token {token}, and acquire the lock again"
        ))
    }
}

fn how(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "as a mutex",
        Mode::Read => "for reading",
        Mode::Write => "for writing",
        Mode::Permits { .. } => "as permits of a semaphore",
    }
}

fn refused(engine: &Engine, key: &Key, kind: ErrorKind, message: impl Into<String>) -> Error {
    Error::new(kind, message).with_key(key).with_store(engine.capabilities.store.clone())
}
