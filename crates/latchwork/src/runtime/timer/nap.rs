//! Short sleeps that check the boot clock in between, on systems without timer descriptors.

use std::sync::{Condvar, Mutex, PoisonError};

use latchwork_store::{
    Moment,
    clock::{LONGEST_NAP, boot_time},
};

pub(super) struct Alarm {
    next: Mutex<Moment>,
    moved: Condvar,
}

impl Alarm {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self { next: Mutex::new(Moment::NEVER), moved: Condvar::new() })
    }

    pub(super) fn set(&self, at: Moment) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = at;
        self.moved.notify_one();
    }

    /// Whether [`wait`](Self::wait) tells of steps of the wall clock.
    pub(super) fn hears_steps(&self) -> bool {
        false
    }

    /// Blocks until the moment that was set may have come.
    pub(super) fn wait(&self) -> bool {
        let next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let nap = next.since(boot_time()).min(LONGEST_NAP);
        let _ = self.moved.wait_timeout(next, nap);
        false
    }
}
