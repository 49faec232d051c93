//! A value that tasks wait for, woken in the order in which they came. (The channel `watch` of tokio
//! draws the order by chance.)

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(crate) struct Level<T> {
    value: Mutex<T>,
    changed: Notify,
}

impl<T> Level<T> {
    fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut T)) {
        change(&mut self.lock());
        self.changed.notify_waiters();
    }

    pub(crate) fn read<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        read(&self.lock())
    }

    /// Waits until the value is so.
    pub(crate) async fn until(&self, is_so: impl Fn(&T) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Enlist before looking, or a change in between would go unnoticed.
            changed.as_mut().enable();
            if self.read(&is_so) {
                return;
            }
            changed.await;
        }
    }
}
