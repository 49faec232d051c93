//! A thread that notes how long the machine let its process stand still.
//!
//! Upper bounds are widened by what it saw, so that a loaded machine does not look like a late
//! lock; lower bounds need no such help. What it sees of a SIGSTOP is taken out again by the
//! history, which knows from the run when the process was stopped.

use std::sync::Arc;
use std::time::Duration;

use latchwork::store::clock::boot_time;

use crate::event::What;
use crate::log::Log;

const NAP: Duration = Duration::from_millis(5);
const WORTH_NOTING: Duration = Duration::from_millis(4);

/// Starts the witness of this process.
pub(crate) fn start(log: Arc<Log>) {
    #[expect(clippy::disallowed_methods, reason = "it measures how late threads run")]
    std::thread::spawn(move || {
        loop {
            let before = boot_time();
            std::thread::sleep(NAP);
            let now = boot_time();
            let length = now.since(before).saturating_sub(NAP);
            if length >= WORTH_NOTING {
                log.note_at(now, None, What::Stalled { length });
            }
        }
    });
}
