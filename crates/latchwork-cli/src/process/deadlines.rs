//! When the command has to go: three moments before the lock may pass on.

use std::time::Duration;

use latchwork_store::Moment;

/// The shortest ttl that leaves a command time to end.
pub(crate) const MIN_TTL: Duration = Duration::from_secs(1);

/// How a hold's end translates into signals to the command.
///
/// ```text
///   last confirmation          asked to end   killed   by the guardian   may pass on
///   |--------------------------------|-----------|--------|-----------------|
///                                 ttl / 3      margin   margin / 2         end
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deadlines {
    longest: Duration,
    hold_end: Moment,
}

/// The moments for one end of the hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Due {
    /// SIGTERM, unless the store confirms the hold before.
    pub(crate) ask: Moment,
    /// SIGKILL by latchwork.
    pub(crate) kill: Moment,
    /// SIGKILL by the guardian, if latchwork has not come to it.
    pub(crate) guardian: Moment,
    /// Whether the end is that of the longest allowed hold, which no confirmation moves.
    pub(crate) by_max_hold: bool,
}

impl Due {
    /// The same, with nothing before the store had time to settle a doubt that rose at `since`.
    pub(crate) fn in_doubt(self, since: Moment, ttl: Duration) -> Self {
        if self.by_max_hold {
            return self;
        }
        let settled = since.plus(settle(ttl));
        Self {
            ask: self.ask.min(since.plus(longest_doubt(ttl))).max(settled),
            kill: self.kill.max(settled),
            // After latchwork, which hears of the store's word first.
            guardian: self.guardian.max(settled.plus(settle(ttl))),
            ..self
        }
    }
}

/// How long latchwork checks the hold again before it asks the command to end: the renewal of a machine that
/// has just woken up needs a moment.
pub(crate) fn settle(ttl: Duration) -> Duration {
    (ttl / 12).min(Duration::from_millis(500))
}

/// How long a hold may be in doubt before the command is asked to end, however much of it remains.
fn longest_doubt(ttl: Duration) -> Duration {
    (ttl / 12).max(Duration::from_millis(250))
}

/// When a command is asked to end whose hold may last for `longest`.
pub(crate) fn asked_after(longest: Duration, ttl: Duration) -> Duration {
    longest - ttl.min(longest) / 3
}

/// How often the guardian's moment is brought up to date.
pub(crate) fn refresh(ttl: Duration) -> Duration {
    ttl / 6
}

impl Deadlines {
    /// For a hold that was granted at `start` and may last for `max_hold`.
    pub(crate) fn new(start: Moment, max_hold: Option<Duration>) -> Self {
        let longest = max_hold.unwrap_or(Duration::MAX);
        Self { longest, hold_end: start.plus(longest) }
    }

    /// What is due when, for a hold that is valid until `valid_until`. The ttl is the one that was
    /// granted last: after a wait the first may be a short one.
    pub(crate) fn due(&self, ttl: Duration, valid_until: Moment) -> Due {
        // The guard's own count began a little earlier, so a validity that it caps is less.
        let by_max_hold = self.hold_end.minus(Duration::from_millis(100)) <= valid_until;
        let end = valid_until.min(self.hold_end);
        let span = ttl.min(self.longest);
        // How long before the end nobody in the group may run any more.
        let margin = (span / 20).max(Duration::from_millis(200));
        Due {
            ask: end.minus(span / 3),
            kill: end.minus(margin),
            guardian: end.minus(margin / 2),
            by_max_hold,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Moment = Moment::from_nanos(1_000_000_000_000);

    fn in_order(due: &Due, end: Moment) {
        assert!(due.ask < due.kill && due.kill < due.guardian && due.guardian < end, "{due:?}");
    }

    #[test]
    fn every_allowed_ttl_leaves_time_to_ask_and_to_kill() {
        for millis in [1_000, 1_500, 2_000, 30_000, 3_600_000] {
            let ttl = Duration::from_millis(millis);
            let end = START.plus(ttl);
            in_order(&Deadlines::new(START, None).due(ttl, end), end);
        }
    }

    #[test]
    fn the_longest_hold_wins_over_the_validity() {
        let ttl = Duration::from_secs(30);
        let deadlines = Deadlines::new(START, Some(Duration::from_secs(2)));
        let due = deadlines.due(ttl, START.plus(ttl));
        assert!(due.by_max_hold);
        assert_eq!(due.ask.since(START), asked_after(Duration::from_secs(2), ttl));
        let hold_end = START.plus(Duration::from_secs(2));
        in_order(&due, hold_end);
        assert!(!deadlines.due(ttl, START.plus(Duration::from_secs(1))).by_max_hold);
    }

    #[test]
    fn an_overdue_lease_waits_for_the_stores_answer() {
        for millis in [1_000, 6_000, 30_000] {
            let ttl = Duration::from_millis(millis);
            let now = START.plus(ttl);
            let due = Deadlines::new(START, None).due(ttl, now.minus(ttl)).in_doubt(now, ttl);
            assert_eq!(due.ask, now.plus(settle(ttl)));
            assert!(due.ask <= due.kill && due.kill < due.guardian, "{due:?}");
            assert!(due.kill <= now.plus(Duration::from_secs(1)));
            // With most of it left, the command is asked to end, and killed no earlier than ever.
            let end = now.plus(ttl);
            let usual = Deadlines::new(START, None).due(ttl, end);
            let due = usual.in_doubt(now, ttl);
            assert!(due.ask < usual.ask && due.kill == usual.kill, "{due:?}");
        }
    }
}
