//! A hold at one moment, as its client learns of it.

use std::ops::Range;
use std::time::Duration;

use latchwork::FencingToken;

/// A hold, and for how long its client may rely on it.
#[derive(Debug, Clone)]
pub(crate) struct HoldStatus {
    /// The id that its client has.
    pub(crate) id: String,
    /// The names of its locks, each with its token.
    pub(crate) locks: Vec<(String, FencingToken)>,
    /// Whether the store has to confirm it before the resource may be used.
    pub(crate) is_suspect: bool,
    pub(crate) ttl: Duration,
    /// For how long the client may rely on it, counted from the arrival of its request.
    pub(crate) valid_for: Duration,
    /// When to renew it, counted from the answer.
    pub(crate) renew_in: Duration,
    /// The period of a task, in wall-clock time since 1970.
    pub(crate) period: Option<Range<Duration>>,
}
