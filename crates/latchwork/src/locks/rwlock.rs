//! Read-write locks: many readers or one writer.

use crate::locks::lock::Lock;
use latchwork_store::Mode;

/// A read-write lock among all users of the same store and key.
///
/// Use it where readers are many and long; where holds are as short as a trip to the store, a mutex
/// is cheaper, for it passes between the tasks of a process without one.
///
/// # Guarantees
///
/// A writer is alone. If the store has a queue (all but Redlock, and Redis without scripts over
/// several keys), claims are admitted in order. A waiting writer stops later readers, so readers
/// cannot starve it. Adjacent readers in the queue are admitted together.
///
/// On etcd and ZooKeeper an [upgrade](crate::Guard::upgrade) sends the waiters ahead of it to the
/// end of the queue. If readers give up upgrades and repeat them, they delay a waiting writer, on
/// ZooKeeper for as long as they go on.
///
/// A read hold can become a write hold, and the other way round, without a gap in which others
/// write: [`Guard::upgrade`](crate::Guard::upgrade) waits for the other readers, and
/// [`Guard::downgrade`](crate::Guard::downgrade) admits them. One reader can upgrade at a time; a
/// second one would wait for the first for ever, and is refused with
/// [`UpgradeConflict`](crate::ErrorKind::UpgradeConflict). Redlock has neither.
///
/// # Fencing
///
/// Readers have tokens as well: a reader that is granted the lock after a writer has a larger one.
/// A resource that keeps the largest token of a served read refuses a writer that was paused before
/// that read ([`Fence::check_read`](crate::fence::Fence::check_read)).
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
/// let (one, two) = (page.read().acquire().await?, page.read().acquire().await?);
/// assert!(page.write().try_acquire().await?.is_none());
/// one.release().await?;
/// two.release().await?;
/// assert!(page.write().try_acquire().await?.is_some());
/// # Ok::<(), latchwork::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug, Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct RwLock(Lock);

impl RwLock {
    pub(crate) fn new(lock: Lock) -> Self {
        Self(lock)
    }

    /// Returns the lock for a reader, who shares it with other readers.
    pub fn read(&self) -> Lock {
        self.0.in_mode(Mode::Read)
    }

    /// Returns the lock for a writer, who holds it alone.
    pub fn write(&self) -> Lock {
        self.0.in_mode(Mode::Write)
    }
}
