//! Which connection this thread moves at the moment.

use std::cell::Cell;

thread_local! {
    /// While a thread sends on a connection or polls it, its address; and whether there is something
    /// to move.
    static BUSY: Cell<(usize, bool)> = const { Cell::new((0, false)) };
    /// Whether it reads for a caller that may hold a lock.
    static CHECKS: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread sends on a connection or reads from one, and may do what an answer brings.
pub(crate) fn is_moving_here() -> bool {
    BUSY.get().0 != 0 && !CHECKS.get()
}

/// Reads for a caller that may hold a lock: what an answer brings is done elsewhere.
pub(super) fn for_caller<T>(read: impl FnOnce() -> T) -> T {
    let before = CHECKS.replace(true);
    let came = read();
    CHECKS.set(before);
    came
}

/// Notes that there is something to move, if this thread moves the connection at this address.
pub(super) fn again(connection: usize) -> bool {
    let is_here = BUSY.get().0 == connection;
    if is_here {
        BUSY.set((connection, true));
    }
    is_here
}

/// While it lives, this thread sends on a connection or polls it. A panic ends that too.
pub(super) struct Busy((usize, bool));

impl Busy {
    /// Begins with the connection at this address.
    pub(super) fn with(connection: usize) -> Self {
        Self(BUSY.replace((connection, false)))
    }

    pub(super) fn was_woken(self) -> bool {
        BUSY.get().1
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        BUSY.set(self.0);
    }
}
