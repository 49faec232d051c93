//! Limits for handing a hold over inside the process.

use std::time::Duration;

/// Limits for handing a hold over inside the process.
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
    /// How long the process may keep the store's grant among its own waiters; other processes are
    /// served after that.
    pub slice: Duration,
    /// How many times at most, up to 1,000. 0 turns handover off.
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
