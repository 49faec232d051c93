//! When the store is asked again, so that looking at many locks costs it a bounded amount.

use std::mem::replace;
use std::time::Duration;

/// The shortest time between two readings.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

/// The shortest time that one lock of a list takes up, so that no more than 1,000 a second are read.
const PER_LOCK: Duration = Duration::from_millis(1);

/// How many times as long as a reading took, the store is left alone.
const REST: u32 = 9;

/// The longest pause because readings are slow: a person who looks at an incident waits for it.
const LONGEST: Duration = Duration::from_secs(10);

/// The longest pause because there are many locks.
const LONGEST_OF_MANY: Duration = Duration::from_secs(30);

/// How often all locks are read.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// How long the reading before took.
    before: Duration,
}

impl Pace {
    /// How long to leave the store alone after all locks were read: a reading takes at most a tenth of the time, and at
    /// most 1,000 locks a second are read, as long as the pause for it is not too long for a person. At least half of the
    /// time, nothing is read.
    pub(crate) fn after_all(&mut self, took: Duration, locks: usize) -> Duration {
        // One slow reading may be the end of an outage.
        let usual = took.min(replace(&mut self.before, took));
        let locks = u32::try_from(locks).unwrap_or(u32::MAX);
        let many = PER_LOCK.saturating_mul(locks).saturating_sub(took).min(LONGEST_OF_MANY);
        INTERVAL.max(usual.saturating_mul(REST).min(LONGEST)).max(many).max(usual)
    }
}

/// How long to leave the store alone after it did not answer.
pub(crate) fn after_failure(took: Duration) -> Duration {
    after_shown(took).min(LONGEST)
}

/// How long to leave the store alone after the locks on the screen were read one by one: half of the time.
pub(crate) fn after_shown(took: Duration) -> Duration {
    INTERVAL.max(took)
}

/// Whether the locks on the screen are worth reading by themselves, because all of them are read too seldom.
pub(crate) fn is_slow(pause: Duration) -> bool {
    pause > INTERVAL
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// The pause after readings that all take so long.
    fn usual(took: Duration, locks: usize) -> Duration {
        Pace { before: took }.after_all(took, locks)
    }

    #[test]
    fn a_reading_takes_at_most_a_tenth_of_the_time() {
        assert_eq!(usual(3 * MS, 12), INTERVAL);
        assert_eq!(usual(900 * MS, 12), 8_100 * MS);
    }

    #[test]
    fn at_most_1000_locks_a_second_are_read() {
        assert_eq!(usual(400 * MS, 10_000) + 400 * MS, 10_000 * MS);
        assert_eq!(usual(MS, 1_000), INTERVAL);
        assert_eq!(Pace::default().after_all(5_000 * MS, 50_000), LONGEST_OF_MANY);
        assert_eq!(usual(MS, usize::MAX), LONGEST_OF_MANY);
    }

    /// H571
    #[test]
    fn h571_one_slow_reading_does_not_stretch_the_pause() {
        let mut pace = Pace::default();
        for took in [7_000 * MS, 3 * MS, 7_000 * MS, 3 * MS] {
            assert_eq!(pace.after_all(took, 12), INTERVAL, "after {took:?}");
        }
        // Nor do many stretch it for long, unless more than half of the time would be reading.
        assert_eq!(usual(7_000 * MS, 12), LONGEST);
        assert_eq!(usual(40_000 * MS, 12), 40_000 * MS);
        assert_eq!(after_failure(2_000 * MS), 2_000 * MS);
        assert_eq!(after_failure(40_000 * MS), LONGEST);
    }
}
