//! When a request was sent, and what the store granted to it.

use std::time::Duration;

use crate::rules::pauses::Pauses;
use latchwork_store::validity::wall_offset;
use latchwork_store::{Clock, FencingToken, Moment};

/// The clocks right before a request was sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    pub(crate) at: Moment,
    /// Wall minus boot time.
    pub(crate) offset: i64,
}

impl Sent {
    pub(crate) fn now(clock: &dyn Clock) -> Self {
        let (at, wall, latest) = crate::rules::pauses::read_at_once(clock);
        // Rather too small: then a pause is taken for longer than it was.
        Self { at, offset: wall_offset(wall, latest) }
    }

    /// How long the machine may have been paused since then.
    pub(crate) fn paused(&self, clock: &dyn Clock, now: Moment) -> Duration {
        let mut pauses = Pauses::since(self.offset);
        pauses.look(clock, now);
        pauses.sum()
    }
}

/// What the store granted, in the holder's own time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Granted {
    pub(crate) token: FencingToken,
    pub(crate) ttl: Duration,
    pub(crate) valid_until: Moment,
    /// Before the request: the ttl runs from its arrival, so a pause of the machine while it was
    /// under way counts.
    pub(crate) sent: Sent,
    pub(crate) store_time: Option<Duration>,
}
