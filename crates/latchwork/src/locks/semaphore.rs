//! Semaphores: a limited number of permits.

use std::time::Duration;

use latchwork_store::{Error, Mode, Resize, Resized};

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
/// The permits held never exceed the limit, or the largest one if clients name different limits.
/// Admission is first come, first served: later claims for few permits, or with a larger limit, do not
/// overtake a waiting claim. Each claim has its own ttl, so the permits of a dead process become free.
///
/// # The limit
///
/// While a claim is held or waits, another limit is `Mismatch`, unless the client that asks with it
/// has chosen a [policy](Self::resize_policy):
///
/// | policy | the claim is admitted if the permits held, and its own, are within |
/// | --- | --- |
/// | [`Never`](Resize::Never) (default) | the limit that all users of the key share |
/// | [`ToMine`](Resize::ToMine) | its own limit, which becomes that of the key |
/// | [`Follow`](Resize::Follow) | the limit of the key; its own if the key is not in use |
///
/// A rolling deployment from 3 to 5 and back therefore uses `ToMine` on both sides: no client fails,
/// no holder is evicted, and at most 5 permits are held. [`resize`](Self::resize) changes the limit
/// for all claims that hold the key or wait for it at that moment. A waiter with `ToMine` goes on by
/// its own limit, except on etcd and ZooKeeper.
///
/// Each policy needs clients of this version or later: an earlier one answers `Mismatch` to another
/// limit.
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
    resize: Resize,
}

impl Semaphore {
    pub(crate) fn new(lock: Lock, of: u32) -> Self {
        Self { lock, of, resize: Resize::Never }
    }

    /// Sets what happens if the key is in use with another limit. Default: `Mismatch`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use latchwork::{Driver, LockManager, Resize};
    /// # use latchwork::store::MemoryBackend;
    /// # let driver = Driver::start().unwrap();
    /// # let locks = LockManager::new(MemoryBackend::new(driver.io()), driver);
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let before = locks.semaphore("exports", 3).resize_policy(Resize::ToMine);
    /// let after = locks.semaphore("exports", 5).resize_policy(Resize::ToMine);
    /// let old = before.permits(3).acquire().await?;
    /// let new = after.permits(2).acquire().await?;
    /// assert!(after.try_acquire().await?.is_none());
    /// # drop((old, new));
    /// # Ok::<(), latchwork::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn resize_policy(mut self, policy: Resize) -> Self {
        self.resize = policy;
        self
    }

    /// Sets the limit of the key to that of this semaphore, for all claims that hold the key or wait
    /// for it now. Waiters that the new limit admits are woken.
    ///
    /// Nobody is evicted: if more permits are held than the new limit admits, no claim is admitted
    /// until enough of them are released. On a key that is not in use there is nothing to change, and the
    /// next client brings its own limit. A client that asks with another limit later is judged by its
    /// [policy](Self::resize_policy).
    ///
    /// # Errors
    ///
    /// `Mismatch` if the key is in use as another kind of lock; `Unsupported` if the store cannot do
    /// it; `Invalid` for a limit of 0; `Unreachable` if the store does not answer: the limit may have
    /// been changed then, and the call can be repeated.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the limit may be changed or not.
    ///
    /// # Examples
    ///
    /// ```
    /// # use latchwork::{Driver, LockManager, Resized};
    /// # use latchwork::store::MemoryBackend;
    /// # let driver = Driver::start().unwrap();
    /// # let locks = LockManager::new(MemoryBackend::new(driver.io()), driver);
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let guard = locks.semaphore("exports", 3).acquire().await?;
    /// let resized = locks.semaphore("exports", 5).resize().await?;
    /// assert_eq!(resized, Resized::Yes { from: 3, to: 5, held: 1 });
    /// assert_eq!(resized.to_string(), "the limit was changed from 3 to 5; 1 permit is held");
    /// # drop(guard);
    /// # Ok::<(), latchwork::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn resize(&self) -> Result<Resized, Error> {
        self.permit().resize().await
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
        self.lock.in_mode(Mode::Permits { take, of: self.of }).with_resize(self.resize)
    }
}
