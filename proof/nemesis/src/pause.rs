//! Sleeping between faults. No lock depends on it.

#![expect(clippy::disallowed_methods, reason = "the run waits in a plain thread between faults")]

use std::time::Duration;

pub(crate) fn pause(length: Duration) {
    std::thread::sleep(length);
}
