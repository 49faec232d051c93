//! Semaphores: a limited number of permits.

use std::time::Duration;

use latchwork_store::{Error, Mode};

use crate::hold::guard::Guard;
use crate::locks::lock::Lock;

/// A semaphore among all users of the same store and key: its holders have at most a fixed number
/// of permits together.
///
/// Use it to limit concurrency: connections to a partner, jobs on a machine. It does not limit a
/// rate: permits are free again when they are released.
///
/// # Guarantees
///
/// The permits held never exceed the limit. Admission is first come, first served: later claims for
/// few permits do not overtake a waiting claim for many. Each claim has its own ttl, so the permits
/// of a dead process become free.
///
/// All users must use the same limit. While a claim is held or waits, another limit is `Mismatch`.
/// To change it, let the old users finish first.
///
/// # Errors
///
/// A majority of stores cannot count permits: on a Redlock it is `Unsupported`.
///
/// # Fencing
///
/// Every hold has its own token, larger than that of every hold that ended before it began. Several
/// hold at a time, so a resource must not refuse smaller ones among them.
///
/// # Examples
///
/// ```
/// # use latchwork::{Driver, LockManager};
/// # use latchwork::store::MemoryBackend;
/// # let driver = Driver::start().unwrap();
/// # let locks = LockManager::new(MemoryBackend::new(driver.io()), driver);
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let exports = locks.semaphore("exports", 5);
/// let small = exports.acquire().await?;
/// let large = exports.permits(4).acquire().await?;
/// assert!(exports.try_acquire().await?.is_none());
/// # drop((small, large));
/// # Ok::<(), latchwork::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug, Clone)]
#[must_use = "a semaphore does nothing until it is acquired"]
pub struct Semaphore {
    lock: Lock,
    of: u32,
}

impl Semaphore {
    pub(crate) fn new(lock: Lock, of: u32) -> Self {
        Self { lock, of }
    }

    /// Takes one permit if one is free now, without waiting.
    ///
    /// # Errors
    ///
    /// As for [`Lock::try_acquire`].
    ///
    /// # Cancel safety
    ///
    /// As for [`Lock::try_acquire`].
    pub async fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        self.permit().try_acquire().await
    }

    /// Takes one permit, waiting without a limit.
    ///
    /// # Errors
    ///
    /// As for [`Lock::acquire`].
    ///
    /// # Cancel safety
    ///
    /// As for [`Lock::acquire`].
    pub async fn acquire(&self) -> Result<Guard, Error> {
        self.permit().acquire().await
    }

    /// Takes one permit, waiting at most `limit`.
    ///
    /// # Errors
    ///
    /// As for [`Lock::acquire_within`].
    ///
    /// # Cancel safety
    ///
    /// As for [`Lock::acquire`].
    pub async fn acquire_within(&self, limit: Duration) -> Result<Guard, Error> {
        self.permit().acquire_within(limit).await
    }

    /// Returns a lock that takes one permit, for its options, such as [`Lock::ttl`].
    pub fn permit(&self) -> Lock {
        self.permits(1)
    }

    /// Returns a lock that takes `take` permits at once, all or none.
    pub fn permits(&self, take: u32) -> Lock {
        self.lock.in_mode(Mode::Permits { take, of: self.of })
    }
}
