//! A thread that measures how long the machine let this process stand still.
//!
//! Upper time bounds are widened by what it saw, so that a loaded machine does not look like a
//! late backend; lower bounds need no such help.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use latchwork_store::Moment;
use latchwork_store::clock::boot_time;

const TICK: Duration = Duration::from_millis(5);
const WORTH_NOTING: Duration = Duration::from_millis(2);
const KEPT: usize = 20_000;

/// What the witness saw: when a nap ended, and how much too late.
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

/// Starts the witness, once for the process.
pub fn start() {
    STARTED.get_or_init(|| {
        #[expect(clippy::disallowed_methods, reason = "it measures how late threads run")]
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

/// The stalls that ended after `moment`.
pub fn since(moment: Moment) -> Stall {
    let seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut stall = Stall::default();
    for (_, late) in seen.iter().rev().take_while(|(at, _)| *at >= moment) {
        stall.sum += *late;
        stall.longest = stall.longest.max(*late);
    }
    stall
}
