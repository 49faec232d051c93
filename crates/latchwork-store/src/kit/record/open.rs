//! Opens a closed key before its linger ends.

use super::{Alive, Now, Record, Wakeup};
use crate::words::Released;

impl Record {
    /// Opens the key if it is closed and nobody holds it. Ends no claim.
    pub(super) fn open(&mut self, now: Now, alive: Alive<'_>) -> (Released, Vec<Wakeup>) {
        let moved = self.sweep(now, alive);
        let opens = self.held.is_empty() && self.closed_until > now.wall;
        if opens {
            // Patience with the first waiter is counted from now on.
            self.closed_until = now.wall;
            self.closed_by = None;
        }
        let released = if opens { Released::Yes } else { Released::NotHeld };
        (released, self.wakeups(&moved, None, now))
    }
}
