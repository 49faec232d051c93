//! Requests that wait for a change of one lock: an event of its name wakes them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// How many wait for a lock, and what wakes them.
type Waiting = (usize, Arc<Notify>);

/// The waiting readers by the names of their locks.
#[derive(Debug, Default, Clone)]
pub(crate) struct Readers(Arc<Mutex<HashMap<String, Waiting>>>);

/// The place of one reader, until it is dropped.
#[derive(Debug)]
pub(crate) struct Reader {
    all: Readers,
    name: String,
    pub(crate) changed: Arc<Notify>,
}

impl Readers {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn enter(&self, name: &str) -> Reader {
        let mut readers = self.lock();
        let (count, changed) = readers.entry(name.to_owned()).or_default();
        *count += 1;
        Reader { all: self.clone(), name: name.to_owned(), changed: changed.clone() }
    }

    /// Wakes the readers of a lock.
    pub(crate) fn wake(&self, name: &str) {
        if let Some((_, changed)) = self.lock().get(name) {
            changed.notify_waiters();
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut readers = self.all.lock();
        if let Some((count, _)) = readers.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                readers.remove(&self.name);
            }
        }
    }
}
