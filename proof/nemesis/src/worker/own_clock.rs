//! The clock that a client of the service reads: the boot clock, or one that stands still while its process is
//! stopped, as `CLOCK_MONOTONIC` does while a machine sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use latchwork_store::Moment;
use latchwork_store::clock::boot_time;

/// How often a clock that can stand still is moved on.
const STEP: Duration = Duration::from_millis(5);

/// A longer pause than this was a stop.
const LONGEST: Duration = Duration::from_millis(100);

/// A client's clock.
#[derive(Debug, Clone, Default)]
pub(crate) struct OwnClock(Option<Arc<AtomicU64>>);

impl OwnClock {
    /// A clock that does not count the time in which the process is stopped.
    pub(crate) fn that_stands_still() -> Self {
        let nanos = Arc::new(AtomicU64::new(boot_time().as_nanos()));
        let counted = nanos.clone();
        #[expect(clippy::disallowed_methods, reason = "the thread is the clock")]
        std::thread::spawn(move || {
            loop {
                let before = boot_time();
                std::thread::sleep(STEP);
                let passed = boot_time().since(before).min(LONGEST);
                counted.fetch_add(passed.as_nanos() as u64, Ordering::Relaxed);
            }
        });
        Self(Some(nanos))
    }

    pub(crate) fn now(&self) -> Moment {
        match &self.0 {
            Some(nanos) => Moment::from_nanos(nanos.load(Ordering::Relaxed)),
            None => boot_time(),
        }
    }

    /// When the boot clock will be there, if nothing stops the process from now on.
    pub(crate) fn on_boot_clock(&self, at: Moment) -> Moment {
        boot_time().plus(at.since(self.now()))
    }
}
