//! A clock and an [`Io`] for tests on one paused tokio runtime, and a measure of stalls for tests on
//! real time.
//!
//! Use the clock in `#[tokio::test(start_paused = true)]`: time passes only while everything waits,
//! so a test of hours takes milliseconds and takes the same course each time.

#![expect(clippy::disallowed_methods, reason = "wraps the paused time of tokio for tests")]

mod pass_on;
mod seeded;
pub mod stalls;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::claim::{Claim, ClaimId, Mode, Order, Stamp};
use crate::clock::{Clock, Moment, Sleep, Steps};
use crate::io::Io;
use crate::key::Key;
pub use seeded::SeededRandom;

/// A [`Clock`] over tokio's own time, which a test can pause and make jump.
#[derive(Debug)]
pub struct PausedClock {
    start: Instant,
    suspended: AtomicU64,
    wall_ahead: AtomicI64,
    steps: Arc<Steps>,
}

impl PausedClock {
    /// What the clocks show at the start: not zero, so that subtracting too much shows.
    const BOOT_START: Duration = Duration::from_secs(1_000);
    const WALL_START: Duration = Duration::from_secs(1_800_000_000);

    /// Starts a clock. Must be called inside a tokio runtime whose time is paused.
    pub fn start() -> Arc<Self> {
        Arc::new(Self {
            start: Instant::now(),
            suspended: AtomicU64::new(0),
            wall_ahead: AtomicI64::new(0),
            steps: Arc::default(),
        })
    }

    /// Makes both clocks jump while no timer fires, as a suspended machine does.
    pub fn suspend(&self, length: Duration) {
        self.suspended.fetch_add(length.as_nanos() as u64, Ordering::SeqCst);
    }

    /// Advances the wall clock alone, as a paused virtual machine does, and wakes the sleepers that
    /// wait for a step of it, as the kernel does.
    pub fn pause_machine(&self, length: Duration) {
        self.wall_ahead.fetch_add(length.as_nanos() as i64, Ordering::SeqCst);
        self.steps.tell();
    }

    /// Sets the wall clock back, as an operator or a time service may.
    pub fn set_wall_back(&self, length: Duration) {
        self.wall_ahead.fetch_sub(length.as_nanos() as i64, Ordering::SeqCst);
        self.steps.tell();
    }

    fn suspended(&self) -> Duration {
        Duration::from_nanos(self.suspended.load(Ordering::SeqCst))
    }
}

impl Clock for PausedClock {
    fn now(&self) -> Moment {
        let running = Instant::now() - self.start;
        Moment::from_nanos(0).plus(Self::BOOT_START + running + self.suspended())
    }

    fn wall(&self) -> Duration {
        let ahead = self.wall_ahead.load(Ordering::SeqCst);
        let boot = self.now().since(Moment::from_nanos(0).plus(Self::BOOT_START));
        let steady = Self::WALL_START + boot;
        let step = Duration::from_nanos(ahead.unsigned_abs());
        if ahead < 0 { steady.saturating_sub(step) } else { steady + step }
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        if at == Moment::NEVER {
            return Box::pin(std::future::pending());
        }
        Box::pin(tokio::time::sleep(at.since(self.now())))
    }

    fn stepped(&self) -> Sleep {
        self.steps.next()
    }
}

/// Creates an [`Io`] on the current tokio runtime, and its clock.
pub fn paused_io() -> (Io, Arc<PausedClock>) {
    let clock = PausedClock::start();
    let spawn = |task| drop(tokio::spawn(task));
    (Io::new(spawn, clock.clone()), clock)
}

/// Creates an exclusive fifo claim on `key`: 10 s, waiting, without floor.
///
/// # Panics
///
/// Panics if `key` is no valid key.
pub fn claim(key: &str) -> Claim {
    Claim {
        key: Key::new(key).expect("a valid key"),
        id: ClaimId::random(),
        mode: Mode::Exclusive,
        order: Order::Fifo,
        ttl: Duration::from_secs(10),
        holder: "a test".into(),
        waits: true,
        floor: 0,
        stamp: Stamp::new(Moment::from_nanos(0)),
        beside: None,
        resize: crate::claim::Resize::Never,
    }
}
