//! Limits for handing a hold over inside the process.

use std::time::Duration;

/// Limits for handing a hold over inside the process.
///
/// ```
/// use std::time::Duration;
/// use latchwork::Handover;
///
/// let stingy = Handover::new(Duration::from_millis(2), 100);
/// assert!(stingy.slice < Handover::default().slice);
/// ```
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handover {
    /// How long the process may keep the store's grant among its own waiters; other processes are
    /// served after that.
    pub slice: Duration,
    /// How many times at most, up to 1,000. 0 turns handover off.
    pub times: u32,
}

impl Handover {
    /// Limits a hold of the store's grant to this time and to so many handovers.
    pub const fn new(slice: Duration, times: u32) -> Self {
        Self { slice, times }
    }

    /// Never hands over.
    pub const OFF: Handover = Handover { slice: Duration::ZERO, times: 0 };
}

impl Default for Handover {
    fn default() -> Self {
        Self { slice: Duration::from_millis(10), times: 1_000 }
    }
}
