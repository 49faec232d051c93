//! A lock that one holder has at a time.

use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{Patience, Request, acquire};
use crate::backend::Mode;
use crate::doorbell::Doorbell;
use crate::engine::Engine;
use crate::error::Error;
use crate::guard::Guard;
use crate::key::Key;
use crate::options::Settings;

/// A mutex over everything that uses the same store and key.
///
/// A cheap value: making one does no I/O, and one key may have many. Use it where one thing must
/// not be done twice at the same time; where the work can be split by readers and writers or needs
/// a number of slots, another primitive lets more of them in.
///
/// Waiters of one process share one place in the store's line, and a released hold passes between
/// them without a trip to the store, for at most the manager's
/// [`Handover`](crate::Handover) slice. [`fair`](Mutex::fair) gives every waiter its own place.
///
/// It is not reentrant: who holds it and acquires it again waits for itself.
///
/// # Examples
///
/// ```
/// # use latchwork_core::{Driver, LockManager, MemoryBackend};
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
#[must_use = "a mutex does nothing until it is acquired"]
pub struct Mutex {
    engine: Arc<Engine>,
    name: Result<Key, Error>,
    settings: Settings,
    fair: bool,
}

impl Mutex {
    pub(crate) fn new(engine: Arc<Engine>, name: &str, settings: Settings) -> Self {
        let name = Key::new(name).and_then(|key| key.in_namespace(&settings.options().namespace));
        Self { engine, name, settings, fair: false }
    }

    /// How long the store keeps the lock without hearing of the holder. While the guard lives it
    /// is renewed every third of this.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings = self.settings.with(|options| options.ttl = Some(ttl));
        self
    }

    /// First come, first served over all processes: every waiter has its own place in the store's
    /// line, and nothing is handed over inside the process. Costs a trip for each hold.
    pub fn fair(mut self) -> Self {
        self.fair = true;
        self
    }

    /// Who this is, for people who ask the store.
    pub fn holder(mut self, text: impl Into<Arc<str>>) -> Self {
        self.settings = self.settings.with(|options| options.holder = Some(text.into()));
        self
    }

    /// The longest hold: after it the lock is given up, whatever the guard does.
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.settings = self.settings.with(|options| options.max_hold = Some(longest));
        self
    }

    /// Acquires the lock if it is free now.
    ///
    /// Answers `None` without asking the store while this process holds the lock or waits for it;
    /// and for a moment after a waiting acquire was dropped, until its place in line is given up.
    ///
    /// # Errors
    ///
    /// Contention is `None`, not an error. `Unreachable` at once if the store does not answer
    /// within the time limit of one verb (a quarter of the ttl, two seconds at most).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing held: what the store may have granted is given back in
    /// the background, at the latest by the ttl.
    pub async fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        acquire(&self.engine, &self.request()?, Patience::Once).await
    }

    /// Acquires the lock, however long it takes.
    ///
    /// # Errors
    ///
    /// `Unreachable` once the store has not answered for a whole ttl.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in line, or leaves it to the next waiter of this
    /// process; nothing stays held.
    pub async fn acquire(&self) -> Result<Guard, Error> {
        self.acquire_with(Patience::Endless).await
    }

    /// Acquires the lock if that is possible within `limit`.
    ///
    /// # Errors
    ///
    /// `TimedOut` if it was not admitted in time; the message names the holder. `Unreachable` if
    /// the store did not answer at the end.
    ///
    /// # Cancel safety
    ///
    /// As for [`acquire`](Mutex::acquire).
    pub async fn acquire_within(&self, limit: Duration) -> Result<Guard, Error> {
        self.acquire_with(Patience::Within(limit)).await
    }

    /// Where a thread that blocks on an acquire can wait for the store by itself
    /// ([`block_on`](crate::block_on)).
    pub fn doorbell(&self) -> Option<&Doorbell> {
        self.engine.capabilities.doorbell.as_ref()
    }

    async fn acquire_with(&self, patience: Patience) -> Result<Guard, Error> {
        let request = self.request()?;
        loop {
            // Only a single try answers `None`.
            if let Some(guard) = acquire(&self.engine, &request, patience).await? {
                return Ok(guard);
            }
        }
    }

    fn request(&self) -> Result<Request, Error> {
        Ok(Request {
            key: self.name.clone()?,
            mode: Mode::Exclusive,
            fair: self.fair,
            plan: self.settings.plan(&self.engine.capabilities)?,
        })
    }
}
