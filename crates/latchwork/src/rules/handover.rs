//! How long a hold may go from waiter to waiter of one process.

use std::time::Duration;

/// When a hold may pass on inside the process.
///
/// ```
/// use std::time::Duration;
/// use latchwork::Handover;
///
/// let stingy = Handover { slice: Duration::from_millis(2), times: 100 };
/// assert!(stingy.slice < Handover::default().slice);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handover {
    /// For how long since the store's grant came; the turn of other processes comes after it.
    pub slice: Duration,
    /// How many times at most, up to 1,000; 0 switches handover off.
    pub times: u32,
}

impl Handover {
    /// Never hands over.
    pub const OFF: Handover = Handover { slice: Duration::ZERO, times: 0 };
}

impl Default for Handover {
    fn default() -> Self {
        Self { slice: Duration::from_millis(10), times: 1_000 }
    }
}
