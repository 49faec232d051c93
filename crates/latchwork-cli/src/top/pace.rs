//! When the store is asked again, so that looking at many locks costs it a bounded amount.

use std::time::Duration;

/// The shortest time between two readings.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

/// The shortest time that one lock of a list takes up, so that no more than 1,000 a second are read.
const PER_LOCK: Duration = Duration::from_millis(1);

/// How many times as long as a reading took, the store is left alone.
const REST: u32 = 9;

/// How long to leave the store alone after all locks were read: a reading takes at most a tenth of the time, and
/// at most 1,000 locks a second are read.
pub(crate) fn after_all(took: Duration, locks: usize) -> Duration {
    let locks = u32::try_from(locks).unwrap_or(u32::MAX);
    INTERVAL.max(took.saturating_mul(REST)).max(PER_LOCK.saturating_mul(locks).saturating_sub(took))
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

    #[test]
    fn a_reading_takes_at_most_a_tenth_of_the_time() {
        assert_eq!(after_all(3 * MS, 12), INTERVAL);
        assert_eq!(after_all(900 * MS, 12), 8_100 * MS);
        assert_eq!(after_all(Duration::MAX, 12), Duration::MAX);
    }

    #[test]
    fn at_most_1000_locks_a_second_are_read() {
        assert_eq!(after_all(400 * MS, 10_000) + 400 * MS, 10_000 * MS);
        assert_eq!(after_all(MS, 1_000), INTERVAL);
        assert!(after_all(MS, usize::MAX) > Duration::from_secs(1_000_000));
    }
}
