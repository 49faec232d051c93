//! A lock before it is acquired: a key, a mode and options.

use std::sync::Arc;
use std::time::Duration;

use crate::hold::engine::Engine;
use crate::hold::guard::Guard;
use crate::rules::adaptive::AdaptiveTtl;
use crate::rules::options::{Plan, Settings};
use crate::wait::acquire::{Admission, Request, call_acquire};
use crate::wait::patience::Patience;
use latchwork_store::{
    Claim, ClaimId, Error, ErrorKind, Key, Mode, Moment, Resize, Resized, Stamp,
};

/// A lock that can be acquired: a key, a mode and options.
///
/// Every primitive that holds one key comes down to this and to one [`Guard`]:
///
/// | made by | admits |
/// | --- | --- |
/// | [`mutex`](crate::LockManager::mutex) | one holder |
/// | [`rwlock`](crate::LockManager::rwlock), then [`read`](crate::RwLock::read) or [`write`](crate::RwLock::write) | many readers or one writer |
/// | [`semaphore`](crate::LockManager::semaphore), then [`permits`](crate::Semaphore::permits) | holders of a number of permits together |
///
/// A cheap value: creating one does no I/O, and one key may have many. It is not reentrant: a
/// holder that acquires it again would deadlock. For that, use
/// [`reentrant`](crate::LockManager::reentrant).
///
/// Waiters of one process for a mutex share one place in the store's queue. A released hold is
/// handed from one to the next without a request, for at most the manager's
/// [`Handover`](crate::Handover) slice. [`fair`](Lock::fair) gives every waiter its own place.
/// Readers, writers and permits always have their own.
///
/// # Examples
///
/// ```
/// # use latchwork::{Driver, LockManager};
/// # use latchwork::store::MemoryBackend;
/// # use std::time::Duration;
/// # let driver = Driver::start().unwrap();
/// # let locks = LockManager::new(MemoryBackend::new(driver.io()), driver);
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let guard = locks.mutex("stock/42").acquire_within(Duration::from_secs(5)).await?;
/// let token = guard.token(); // give it to the resource
/// guard.ensure_held()?;
/// guard.release().await?;
/// # let _ = token;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Debug, Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    engine: Arc<Engine>,
    key: Result<Key, Error>,
    mode: Mode,
    settings: Settings,
    fair: bool,
    stops_at_linger: bool,
    resize: Resize,
}

impl Lock {
    /// The lock `name` in the namespace of the settings.
    pub(crate) fn new(engine: Arc<Engine>, name: &str, mode: Mode, settings: Settings) -> Self {
        let key = settings.key(name);
        let (fair, stops_at_linger, resize) = (false, false, Resize::Never);
        Self { engine, key, mode, settings, fair, stops_at_linger, resize }
    }

    /// The same key in another mode.
    pub(crate) fn in_mode(&self, mode: Mode) -> Self {
        Self { mode, ..self.clone() }
    }

    /// The same lock with another policy for other limits of permits.
    pub(crate) fn with_resize(self, resize: Resize) -> Self {
        Self { resize, ..self }
    }

    /// Sets the ttl: how long the store keeps the lock without a renewal. While the guard lives, it
    /// is renewed every third of the ttl.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings = self.settings.with(|options| options.fix_ttl(ttl));
        self
    }

    /// Lets the ttl follow the hold times of the key, within bounds; see
    /// [`LockManager::adaptive_ttl`](crate::LockManager::adaptive_ttl).
    pub fn adaptive_ttl(mut self, bounds: AdaptiveTtl) -> Self {
        self.settings = self.settings.with(|options| options.follow_holds(bounds));
        self
    }

    /// Serves waiters of all processes first come, first served: each waiter has its own place in
    /// the store's queue, and nothing is handed over inside the process. Each hold costs a request.
    pub fn fair(mut self) -> Self {
        self.fair = true;
        self
    }

    /// Sets the description of the holder that other clients and `latchwork show` display.
    pub fn holder(mut self, text: impl Into<Arc<str>>) -> Self {
        self.settings = self.settings.with(|options| options.holder = Some(text.into()));
        self
    }

    /// What the holder is to be known by in an election.
    pub(crate) fn candidate(mut self, text: impl Into<Arc<str>>) -> Self {
        self.settings = self.settings.with(|options| options.candidate = Some(text.into()));
        self
    }

    /// Sets the maximum hold time. When it elapses, the lock is lost even if the guard is alive.
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.settings = self.settings.with(|options| options.max_hold = Some(longest));
        self
    }

    /// Sets how long the key stays closed after a hold that ended without a release: the holder
    /// died, could not reach the store, or exceeded [`max_hold`](Lock::max_hold). Default: none.
    ///
    /// Use it for a resource that cannot check tokens: writes in flight then have this time to
    /// arrive. The store keeps the claim for the ttl and the delay; the guard relies on the ttl
    /// alone. A release, or the drop of a guard that is held, opens the key at once. On files, a
    /// dead holder's key opens when the ttl and the delay have ended, not at its death.
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.settings = self.settings.with(|options| options.lock_delay = Some(delay));
        self
    }

    /// Acquires the lock if it is free now, without waiting.
    ///
    /// A mutex returns `None` without a request while this process holds it or waits for it, and
    /// for a moment after a waiting acquire was dropped, until its place in the queue is withdrawn.
    ///
    /// # Errors
    ///
    /// Contention is `None`, not an error. `Mismatch` if the key is in use as another kind of lock,
    /// or as a semaphore with another limit; `Unsupported` if the store has no such locks; `Invalid`
    /// for a bad name or option, which the message names. `Unreachable` at once if the store does not answer
    /// within the time limit of one verb (a quarter of the ttl, two seconds at most). `Forked` in a
    /// child of the process that connected.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing held: if the store may have granted the lock, it is
    /// released in the background, or expires with its ttl. A future that was woken and is not
    /// polled for two seconds releases it too, and tries again when it is polled.
    pub async fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        Ok(self.admit(Patience::Once).await?.guard())
    }

    /// Acquires the lock, waiting without a limit.
    ///
    /// # Errors
    ///
    /// As for [`try_acquire`](Lock::try_acquire), and `Unreachable` only once the store has not
    /// answered for a whole ttl.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future withdraws its place in the queue, or leaves it to the next waiter of
    /// this process; nothing stays held.
    ///
    /// A future that is kept and not polled delays others by at most two seconds. If it was woken
    /// and is not polled for that long, another waiter gets what it had: a hold handed to it, the
    /// lead of its process, a grant of the store, or its place in the store's queue. `select!` in a
    /// loop does that to a future when another branch waits for the same key. When it is polled
    /// again, it waits ahead of the other waiters of its process.
    pub async fn acquire(&self) -> Result<Guard, Error> {
        self.acquire_with(Patience::Endless).await
    }

    /// Acquires the lock, waiting at most `limit`.
    ///
    /// # Errors
    ///
    /// `TimedOut` if the lock was not free in time; the message names the holder. `Unreachable` if
    /// the store did not answer at the end. Else as for [`acquire`](Lock::acquire).
    ///
    /// # Cancel safety
    ///
    /// As for [`acquire`](Lock::acquire).
    pub async fn acquire_within(&self, limit: Duration) -> Result<Guard, Error> {
        self.acquire_with(Patience::Within(limit)).await
    }

    /// Acquires the lock, runs `work` while it is held, and releases it.
    ///
    /// `work` gets the guard, for its [token](Guard::token) and to ask [`ensure_held`](Guard::ensure_held).
    /// If the lock is lost, `work` is dropped at its next await point.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Lock::acquire), and `Lost` if the lock was lost before `work` had ended:
    /// then its result is dropped, and the message names the token to check for. If the release
    /// fails otherwise, `work` was done under the lock: its result is returned, and the release
    /// continues in the background.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`, and releases the lock in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), latchwork::Error> {
    /// let locks = latchwork::connect("mem:").await?;
    /// let left = locks.mutex("stock/42").with(async |guard| sell(guard.token()).await).await?;
    /// # async fn sell(_: latchwork::FencingToken) -> u32 { 1 }
    /// # assert_eq!(left, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn with<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T, Error> {
        let guard = self.acquire().await?;
        let done = guard.run(work(&guard)).await;
        match (done, guard.release().await) {
            (_, Err(error)) if error.kind() == ErrorKind::Lost => Err(error),
            (Ok(output), _) => Ok(output),
            (Err(lost), _) => Err(Error::new(ErrorKind::Lost, lost.to_string()).with_lost(lost)),
        }
    }

    /// Does not wait for a key that is kept closed.
    #[cfg(feature = "once")]
    pub(crate) fn stop_at_linger(self) -> Self {
        Self { stops_at_linger: true, ..self }
    }

    /// Returns the key, or an error if the name is invalid.
    ///
    /// # Errors
    ///
    /// `Invalid` for a name that no store takes.
    pub fn key(&self) -> Result<&Key, Error> {
        self.key.as_ref().map_err(Clone::clone)
    }

    pub(crate) fn plan(&self) -> Result<Plan, Error> {
        self.settings.plan(&self.engine.capabilities)
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    async fn acquire_with(&self, patience: Patience) -> Result<Guard, Error> {
        loop {
            // Only a single try is refused.
            if let Some(guard) = self.admit(patience).await?.guard() {
                return Ok(guard);
            }
        }
    }

    /// As [`acquire_within`](Lock::acquire_within) for a caller that began before.
    pub(crate) async fn acquire_until(
        &self,
        deadline: Moment,
        limit: Duration,
    ) -> Result<Guard, Error> {
        self.acquire_with(Patience::Until(deadline, limit)).await
    }

    pub(crate) async fn admit(&self, patience: Patience) -> Result<Admission, Error> {
        let key = self.key()?;
        self.engine.check_here(Some(key))?;
        let (request, start) = (self.request()?, self.engine.io.now());
        let answer = call_acquire(&self.engine, request, patience, start).await;
        self.engine.told(answer, Some(key))
    }

    fn request(&self) -> Result<Request, Error> {
        let key = self.key.clone()?;
        self.check_permits(&key)?;
        let mut plan = self.plan()?;
        if plan.rules.adaptive_ttl.is_some() {
            plan = plan.adapted(self.engine.habits.usual(&key));
        }
        let Self { mode, fair, stops_at_linger, resize, .. } = *self;
        Ok(Request { key, mode, fair, stops_at_linger, resize, beside: None, plan })
    }

    /// A number of permits that exceeds the limit is an error before any request is sent.
    fn check_permits(&self, key: &Key) -> Result<(), Error> {
        let Mode::Permits { take, of } = self.mode else { return Ok(()) };
        let (message, step) = if of == 0 {
            ("of: a semaphore needs at least one permit".to_owned(), "choose a limit of at least 1")
        } else if take == 0 {
            ("take: at least one permit is needed".to_owned(), "ask for at least 1")
        } else if take > of {
            (
                format!("take: {take} exceeds the {of} permits of the semaphore"),
                "ask for fewer permits",
            )
        } else {
            return self.check_resize(key);
        };
        Err(Error::new(ErrorKind::Invalid, message)
            .with_key(key)
            .with_store(self.engine.capabilities.store.clone())
            .with_next_step(step))
    }

    fn check_resize(&self, key: &Key) -> Result<(), Error> {
        let can = &self.engine.capabilities;
        // A store without permits says so itself.
        if self.resize == Resize::Never || can.mixed_limits || !can.permits {
            return Ok(());
        }
        let message = "resize: all users of a semaphore on this store need the same limit";
        Err(Error::new(ErrorKind::Unsupported, message)
            .with_key(key)
            .with_store(can.store.clone())
            .with_next_step("leave the policy at never, and use one limit for each key"))
    }

    /// Sets the limit of the key to that of this lock's mode.
    pub(crate) async fn resize(&self) -> Result<Resized, Error> {
        let key = self.key()?;
        self.check_permits(key)?;
        let engine = &self.engine;
        engine.check_open(Some(key))?;
        let plan = self.plan()?;
        let limit = plan.rules.op_timeout(plan.ttl);
        let stamp = Stamp::new(engine.io.now());
        let claim = Claim::new(key.clone(), ClaimId::random(), self.mode, plan.ttl, stamp)
            .with(|it| it.holder = plan.holder.clone());
        let answer = engine.native(engine.io.answer(limit, engine.backend.resize(&claim))).await;
        engine.told(answer.map(|said| said.map_err(|e| engine.seen(e, Some(key)))), Some(key))
    }
}
