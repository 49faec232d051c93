//! Measures how long the machine did not run this process, with a thread that sleeps in short
//! steps.
//!
//! Upper time bounds are widened by what it saw, so that a loaded machine does not look like a
//! late backend; lower bounds need no such help.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::clock::{Moment, boot_time};

const TICK: Duration = Duration::from_millis(5);
const WORTH_NOTING: Duration = Duration::from_millis(2);
const KEPT: usize = 20_000;

/// What the thread saw: when a nap ended, and how much too late.
static SEEN: Mutex<Vec<(Moment, Duration)>> = Mutex::new(Vec::new());
static STARTED: OnceLock<()> = OnceLock::new();

/// The stalls since a moment.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stall {
    /// All of them together.
    pub sum: Duration,
    /// The longest one.
    pub longest: Duration,
}

/// Starts the thread, once for the process.
pub fn start() {
    STARTED.get_or_init(|| {
        std::thread::spawn(|| {
            loop {
                let before = boot_time();
                std::thread::sleep(TICK);
                let now = boot_time();
                let late = now.since(before).saturating_sub(TICK);
                if late >= WORTH_NOTING {
                    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
                    if seen.len() == KEPT {
                        seen.drain(..KEPT / 2);
                    }
                    seen.push((now, late));
                }
            }
        });
    });
}

/// Returns the stalls that ended after `moment`.
pub fn since(moment: Moment) -> Stall {
    let seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut stall = Stall::default();
    for (_, late) in seen.iter().rev().take_while(|(at, _)| *at >= moment) {
        stall.sum += *late;
        stall.longest = stall.longest.max(*late);
    }
    stall
}

/// Returns how long something that ends now may have taken: its limit, and the stalls since it
/// began.
pub fn widened(limit: Duration, took: Duration) -> Duration {
    let began = Moment::from_nanos(boot_time().as_nanos().saturating_sub(took.as_nanos() as u64));
    limit + since(began).sum
}

/// Fails if more has passed since `start` than the limit and the stalls.
#[track_caller]
pub fn in_time(start: Instant, limit: Duration) {
    let took = start.elapsed();
    assert!(took < widened(limit, took), "took {took:?} of {limit:?}");
}
