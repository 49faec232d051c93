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

mod election;
mod guard;
mod lock;
mod multi;
mod once;
mod reentrant;

use std::sync::Arc;
use std::time::Duration;

use latchwork_core::doctor::{Prepared, Report};
use latchwork_core::{
    AdaptiveTtl, Capabilities, Error, ForceReleased, Handover, Observer, Period, Snapshot, block_on,
};

pub use self::election::{Changes, Election, Leadership};
pub use self::guard::Guard;
pub use self::lock::{Lock, RwLock, Semaphore};
pub use self::multi::{MultiGuard, MultiLock};
pub use self::once::{Begun, Once, Run};
pub use self::reentrant::ReentrantMutex;

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

    /// See [`LockManager::adaptive_ttl`](crate::LockManager::adaptive_ttl).
    #[must_use]
    pub fn adaptive_ttl(self, bounds: AdaptiveTtl) -> Self {
        Self(self.0.adaptive_ttl(bounds))
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
    pub fn mutex(&self, name: impl AsRef<str>) -> Lock {
        Lock(self.0.mutex(name))
    }

    /// A read-write lock; see [`LockManager::rwlock`](crate::LockManager::rwlock).
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock(self.0.rwlock(name))
    }

    /// A semaphore; see [`LockManager::semaphore`](crate::LockManager::semaphore).
    pub fn semaphore(&self, name: impl AsRef<str>, of: u32) -> Semaphore {
        Semaphore(self.0.semaphore(name, of))
    }

    /// A mutex that its owner may enter again; see
    /// [`LockManager::reentrant`](crate::LockManager::reentrant).
    pub fn reentrant(&self, name: impl AsRef<str>) -> ReentrantMutex {
        ReentrantMutex(self.0.reentrant(name))
    }

    /// Several mutexes, all or none; see [`LockManager::multi`](crate::LockManager::multi).
    pub fn multi<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> MultiLock {
        MultiLock(self.0.multi(names))
    }

    /// An election; see [`LockManager::election`](crate::LockManager::election).
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election(self.0.election(name))
    }

    /// A task that is done once in each period; see
    /// [`LockManager::once`](crate::LockManager::once).
    pub fn once(&self, name: impl AsRef<str>, every: Period) -> Once {
        Once(self.0.once(name, every))
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
