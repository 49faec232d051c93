//! The same API for programs without async code.
//!
//! Every call waits on the calling thread; renewal and releases in the background run on
//! Latchwork's own thread either way. Do not call it from async code: it blocks the runtime's
//! thread.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let locks = latchwork::blocking::connect("mem:")?;
//! let guard = locks.mutex("nightly").acquire()?;
//! guard.ensure_held()?;
//! guard.release()?;
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;
use std::time::Duration;

use latchwork_core::block_on;
use latchwork_core::doctor::{Prepared, Report};
use latchwork_core::{
    Capabilities, Error, FencingToken, ForceReleased, Handover, HoldState, Key, Lost, Moment,
    NotHeld, Observer, Released, Snapshot,
};

/// Connects to a store; see [`connect`](crate::connect()).
///
/// # Errors
///
/// As [`connect`](crate::connect()).
pub fn connect(url: &str) -> Result<LockManager, Error> {
    block_on(None, crate::connect(url)).map(LockManager)
}

/// Examines a store; see [`doctor`](crate::doctor()).
///
/// # Errors
///
/// As [`doctor`](crate::doctor()).
pub fn doctor(url: &str) -> Result<Report, Error> {
    block_on(None, crate::doctor(url))
}

/// Prepares a store for its first locks; see [`init`](crate::init).
///
/// # Errors
///
/// As [`init`](crate::init).
pub fn init(url: &str) -> Result<Prepared, Error> {
    block_on(None, crate::init(url))
}

/// Locks on one store; see [`LockManager`](crate::LockManager).
#[derive(Debug, Clone)]
pub struct LockManager(latchwork_core::LockManager);

impl From<latchwork_core::LockManager> for LockManager {
    fn from(locks: latchwork_core::LockManager) -> Self {
        Self(locks)
    }
}

impl LockManager {
    /// See [`LockManager::namespace`](crate::LockManager::namespace).
    #[must_use]
    pub fn namespace(self, namespace: impl Into<String>) -> Self {
        Self(self.0.namespace(namespace))
    }

    /// See [`LockManager::ttl`](crate::LockManager::ttl).
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// See [`LockManager::holder`](crate::LockManager::holder).
    #[must_use]
    pub fn holder(self, text: impl Into<Arc<str>>) -> Self {
        Self(self.0.holder(text))
    }

    /// See [`LockManager::max_hold`](crate::LockManager::max_hold).
    #[must_use]
    pub fn max_hold(self, longest: Duration) -> Self {
        Self(self.0.max_hold(longest))
    }

    /// See [`LockManager::max_ttl`](crate::LockManager::max_ttl).
    #[must_use]
    pub fn max_ttl(self, longest: Duration) -> Self {
        Self(self.0.max_ttl(longest))
    }

    /// See [`LockManager::renew_every`](crate::LockManager::renew_every).
    #[must_use]
    pub fn renew_every(self, pause: Duration) -> Self {
        Self(self.0.renew_every(pause))
    }

    /// See [`LockManager::op_timeout`](crate::LockManager::op_timeout).
    #[must_use]
    pub fn op_timeout(self, limit: Duration) -> Self {
        Self(self.0.op_timeout(limit))
    }

    /// See [`LockManager::handover`](crate::LockManager::handover).
    #[must_use]
    pub fn handover(self, handover: Handover) -> Self {
        Self(self.0.handover(handover))
    }

    /// See [`LockManager::observer`](crate::LockManager::observer).
    #[must_use]
    pub fn observer(self, observer: Arc<dyn Observer>) -> Self {
        Self(self.0.observer(observer))
    }

    /// A mutex; see [`LockManager::mutex`](crate::LockManager::mutex).
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex(self.0.mutex(name))
    }

    /// See [`LockManager::capabilities`](crate::LockManager::capabilities).
    pub fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }

    /// See [`LockManager::inspect`](crate::LockManager::inspect).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<Snapshot, Error> {
        block_on(None, self.0.inspect(name))
    }

    /// See [`LockManager::list`](crate::LockManager::list).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn list(&self, prefix: impl AsRef<str>) -> Result<Vec<Snapshot>, Error> {
        block_on(None, self.0.list(prefix))
    }

    /// See [`LockManager::force_release`](crate::LockManager::force_release).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn force_release(&self, name: impl AsRef<str>) -> Result<ForceReleased, Error> {
        block_on(None, self.0.force_release(name))
    }

    /// See [`LockManager::close`](crate::LockManager::close).
    pub fn close(&self) {
        block_on(None, self.0.close());
    }
}

/// A mutex; see [`Mutex`](crate::Mutex).
#[derive(Debug, Clone)]
#[must_use = "a mutex does nothing until it is acquired"]
pub struct Mutex(latchwork_core::Mutex);

impl Mutex {
    /// See [`Mutex::ttl`](crate::Mutex::ttl).
    pub fn ttl(self, ttl: Duration) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// See [`Mutex::fair`](crate::Mutex::fair).
    pub fn fair(self) -> Self {
        Self(self.0.fair())
    }

    /// See [`Mutex::holder`](crate::Mutex::holder).
    pub fn holder(self, text: impl Into<Arc<str>>) -> Self {
        Self(self.0.holder(text))
    }

    /// See [`Mutex::max_hold`](crate::Mutex::max_hold).
    pub fn max_hold(self, longest: Duration) -> Self {
        Self(self.0.max_hold(longest))
    }

    /// See [`Mutex::try_acquire`](crate::Mutex::try_acquire).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        Ok(block_on(None, self.0.try_acquire())?.map(Guard))
    }

    /// See [`Mutex::acquire`](crate::Mutex::acquire).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn acquire(&self) -> Result<Guard, Error> {
        block_on(self.0.doorbell(), self.0.acquire()).map(Guard)
    }

    /// See [`Mutex::acquire_within`](crate::Mutex::acquire_within).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn acquire_within(&self, limit: Duration) -> Result<Guard, Error> {
        block_on(self.0.doorbell(), self.0.acquire_within(limit)).map(Guard)
    }
}

/// A lock that is held; see [`Guard`](crate::Guard). Dropping it releases the lock.
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub struct Guard(latchwork_core::Guard);

impl Guard {
    /// The key that is held.
    pub fn key(&self) -> &Key {
        self.0.key()
    }

    /// The number to give to the resource.
    pub fn token(&self) -> FencingToken {
        self.0.token()
    }

    /// How long the hold may be counted on if it is not renewed again.
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// The ttl that the store granted last.
    pub fn ttl(&self) -> Duration {
        self.0.ttl()
    }

    /// Until when the hold may be counted on, on the boot clock.
    pub fn valid_until(&self) -> Moment {
        self.0.valid_until()
    }

    /// What the hold is right now, by the clock.
    pub fn state(&self) -> HoldState {
        self.0.state()
    }

    /// See [`Guard::ensure_held`](crate::Guard::ensure_held).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn ensure_held(&self) -> Result<FencingToken, NotHeld> {
        self.0.ensure_held()
    }

    /// Waits until the hold has ended otherwise than by a release.
    pub fn lost(&self) -> Lost {
        block_on(None, self.0.lost())
    }

    /// See [`Guard::release`](crate::Guard::release).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn release(self) -> Result<Released, Error> {
        block_on(None, self.0.release())
    }
}
