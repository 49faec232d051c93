//! Time in a history: it passes when the history says so.

use std::cell::Cell;
use std::time::Duration;

use latchwork_store::kit::record::Now;
use latchwork_store::testing::PausedClock;
use latchwork_store::{Clock, Moment};

/// Time that does not move by itself.
pub(super) trait Time {
    fn pass(&self, length: Duration);
    fn now(&self) -> Now;
}

impl Time for PausedClock {
    fn pass(&self, length: Duration) {
        self.suspend(length);
    }

    fn now(&self) -> Now {
        Now { lease: Clock::now(self).since(Moment::from_nanos(0)), wall: self.wall() }
    }
}

/// The time of a store whose clock is moved from here.
pub(super) struct ByHand<F> {
    pass: F,
    passed: Cell<Duration>,
}

impl<F> ByHand<F> {
    pub(super) fn new(pass: F) -> Self {
        Self { pass, passed: Cell::default() }
    }
}

impl<F: Fn(Duration)> Time for ByHand<F> {
    fn pass(&self, length: Duration) {
        (self.pass)(length);
        self.passed.set(self.passed.get() + length);
    }

    fn now(&self) -> Now {
        // A linger that has ended has a moment before now.
        let now = Duration::from_secs(1_000_000) + self.passed.get();
        Now { lease: now, wall: now }
    }
}
