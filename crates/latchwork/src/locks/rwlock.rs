//! Many readers or one writer.

use crate::locks::lock::Lock;
use latchwork_store::Mode;

/// A read-write lock over everything that uses the same store and key.
///
/// Use it where readers are many and long; where holds are as short as a trip to the store, a mutex
/// is cheaper, for it passes between the tasks of a process without one.
///
/// # Guarantees
///
/// A writer is alone. Where the store has a line (all but a Redlock and a Redis without scripts over
/// several keys), a writer that waits stops later readers, so readers cannot keep it out, and who
/// came first is admitted first; readers next to each other in line are admitted together.
///
/// There is no way up from a read hold to a write hold: two readers that both tried would wait for
/// each other for ever. There is none down either: release the write hold and acquire a read hold,
/// and check what you wrote, for a writer may have come in between.
///
/// # Fencing
///
/// Readers have tokens as well: a reader that came after a writer has a larger one. A resource that
/// keeps the largest token of a served read refuses a writer that was paused before that read
/// ([`Fence::check_read`](crate::fence::Fence::check_read)).
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

    /// The lock as a reader wants it: together with other readers.
    pub fn read(&self) -> Lock {
        self.0.in_mode(Mode::Read)
    }

    /// The lock as a writer wants it: alone.
    pub fn write(&self) -> Lock {
        self.0.in_mode(Mode::Write)
    }
}
