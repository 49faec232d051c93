//! How long a closed key stays closed, whatever the wall clock of a process shows.
//!
//! A record says it twice: by the wall clock of the process that closed the key, and by the boot clock, which all
//! processes of a boot share. Within that boot the boot clock alone decides: a wall clock that is wrong for a while, or
//! for one process, opens no key early and keeps none closed. In a later boot there is only the wall clock; it keeps
//! the key closed for at most as long as it was to stay closed from the start.

use std::time::Duration;

use latchwork_store::kit::record::{Now, Record};

use crate::records::boot::Era;

/// The end of a closing by the boot clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Anchor {
    pub(crate) boot: u128,
    pub(crate) until: Duration,
}

/// What of a record depends on the clocks, as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Times {
    /// By the wall clock of the process that closed the key.
    pub(crate) closed_until: Duration,
    pub(crate) open_since: Duration,
    pub(crate) anchor: Option<Anchor>,
}

/// A closing as it was read, and as the record shows it to this process: by its own wall clock.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Closing {
    stored: Duration,
    anchor: Option<Anchor>,
    shown: Duration,
}

impl Closing {
    /// Translates the closing of a record that was read.
    pub(crate) fn read(record: &mut Record, anchor: Option<Anchor>, era: Era<'_>) -> Self {
        let Now { lease, wall } = era.now;
        let mut closing = Self { stored: record.closed_until, anchor, shown: record.closed_until };
        match anchor {
            Some(Anchor { boot, until }) if era.is_now(boot) => {
                closing.shown = wall.saturating_add(until.saturating_sub(lease));
                if until <= lease {
                    record.closed_by = None;
                    record.open_since = record.open_since.max(until);
                    closing = Self::default();
                }
            }
            _ => {
                let closed_at = record.closed_by.as_ref().and_then(|by| by.closed_at);
                if let Some(closed_at) = closed_at {
                    let length = closing.stored.saturating_sub(closed_at);
                    closing.shown = closing.stored.min(wall.saturating_add(length));
                }
            }
        }
        record.closed_until = closing.shown;
        closing
    }

    /// What to store of a record that a verb may have changed.
    pub(crate) fn write(&self, record: &Record, boot: u128, now: Now) -> Times {
        let Now { lease, wall } = now;
        let (open_since, until) = (record.open_since, record.closed_until);
        if until == self.shown {
            return Times { closed_until: self.stored, open_since, anchor: self.anchor };
        }
        if until <= wall || record.closed_by.is_none() {
            // It was opened: no other clock may find it closed.
            let opened = lease.saturating_sub(wall.saturating_sub(until));
            let open_since = open_since.max(opened);
            return Times { closed_until: Duration::ZERO, open_since, anchor: None };
        }
        let anchor = Anchor { boot, until: lease.saturating_add(until - wall) };
        Times { closed_until: until, open_since, anchor: Some(anchor) }
    }
}

#[cfg(test)]
mod tests {
    use latchwork_store::Holder;

    use super::*;
    use crate::records::record_file::tests::All;
    use crate::records::session::Life;

    const SEC: Duration = Duration::from_secs(1);
    const DAY: Duration = Duration::from_secs(86_400);
    const WALL: Duration = Duration::from_secs(1_790_000_000);
    const HERE: u128 = 7;

    fn era(boot: u128, lease: Duration, wall: Duration) -> Era<'static> {
        Era { boot, lives: &All(Life::Dead), now: Now { lease, wall } }
    }

    /// A key that is closed for ten minutes, by a clock that is so far ahead.
    fn closed(ahead: Duration) -> (Times, Record) {
        let wall = WALL + ahead;
        let record = Record {
            closed_until: wall + 600 * SEC,
            closed_by: Some(Holder::new("web-2").with(|it| it.closed_at = Some(wall))),
            ..Record::default()
        };
        let now = Now { lease: 100 * SEC, wall };
        (Closing::default().write(&record, HERE, now), record)
    }

    fn left(times: Times, by: &Record, era: Era<'_>) -> Duration {
        let mut record = Record { closed_until: times.closed_until, ..by.clone() };
        Closing::read(&mut record, times.anchor, era);
        record.closed_until.saturating_sub(era.now.wall)
    }

    #[test]
    fn within_a_boot_the_boot_clock_decides() {
        for ahead in [Duration::ZERO, 7 * DAY] {
            let (times, by) = closed(ahead);
            for wall in [WALL - DAY, WALL, WALL + 3 * 3_600 * SEC, WALL + 30 * DAY] {
                assert_eq!(left(times, &by, era(HERE, 300 * SEC, wall)), 400 * SEC, "{wall:?}");
                assert_eq!(
                    left(times, &by, era(HERE, 700 * SEC, wall)),
                    Duration::ZERO,
                    "{wall:?}"
                );
            }
        }
    }

    #[test]
    fn in_another_boot_a_closing_is_no_longer_than_it_was() {
        let (times, by) = closed(7 * DAY);
        assert_eq!(left(times, &by, era(HERE + 1, 5 * SEC, WALL)), 600 * SEC);
        let (times, by) = closed(Duration::ZERO);
        assert_eq!(left(times, &by, era(HERE + 1, 5 * SEC, WALL + 100 * SEC)), 500 * SEC);
        assert_eq!(left(times, &by, era(HERE + 1, 5 * SEC, WALL + 700 * SEC)), Duration::ZERO);
    }

    /// What is opened by a clock that is ahead is open for all.
    #[test]
    fn an_opened_key_is_open_by_every_clock() {
        let (times, by) = closed(Duration::ZERO);
        let ahead = era(HERE, 200 * SEC, WALL + DAY);
        let mut record = Record { closed_until: times.closed_until, ..by };
        let closing = Closing::read(&mut record, times.anchor, ahead);
        (record.closed_until, record.closed_by) = (ahead.now.wall, None);
        let times = closing.write(&record, HERE, ahead.now);
        assert_eq!(
            times,
            Times { closed_until: Duration::ZERO, open_since: 200 * SEC, anchor: None }
        );
    }
}
