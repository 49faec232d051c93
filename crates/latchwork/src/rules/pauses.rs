//! Detects pauses of the machine by comparing the wall clock with the boot clock.

use std::time::Duration;

use latchwork_store::validity::{PAUSE_TOLERANCE, wall_offset};
use latchwork_store::{Clock, Moment};

/// What two readings of the same clocks may differ by for no reason: one is read after the other.
const NOISE: Duration = Duration::from_millis(5);
/// How far apart the two readings around a third may be for that to count as read at once.
const AT_ONCE: Duration = Duration::from_millis(1);
/// How often to read again where the thread was interrupted in between.
const READINGS: u32 = 8;

/// The steps forward of the wall clock since the store's last confirmation was asked for.
///
/// Each may be the end of a pause in which the lease ran on at the store, so they add up, also if
/// the clock was set back in between.
#[derive(Debug)]
pub(crate) struct Pauses {
    /// Wall minus boot time at the last step, or at the start.
    offset: i64,
    sum: Duration,
}

impl Pauses {
    /// None yet, since both clocks were read with this difference.
    pub(crate) fn since(offset: i64) -> Self {
        Self { offset, sum: Duration::ZERO }
    }

    /// Compares the clocks; `true` if the wall clock was set forward since the last look.
    pub(crate) fn look(&mut self, clock: &dyn Clock, now: Moment) -> bool {
        if !self.is_step(wall_offset(clock.wall(), now)) {
            return false;
        }
        // The thread may have been interrupted between the two readings.
        let (earliest, wall, _) = read_at_once(clock);
        let offset = wall_offset(wall, earliest);
        self.is_step(offset) && self.take(offset)
    }

    fn is_step(&self, offset: i64) -> bool {
        offset.abs_diff(self.offset) >= NOISE.as_nanos() as u64
    }

    fn take(&mut self, offset: i64) -> bool {
        let moved = offset.saturating_sub(self.offset);
        self.offset = offset;
        let forward = u64::try_from(moved).unwrap_or(0);
        self.sum = self.sum.saturating_add(Duration::from_nanos(forward));
        forward > 0
    }

    /// How long the machine may have been paused.
    pub(crate) fn sum(&self) -> Duration {
        self.sum
    }

    /// Whether that is too long to go on without the store's word.
    pub(crate) fn are_doubtful(&self) -> bool {
        self.sum > PAUSE_TOLERANCE
    }
}

/// Both clocks, as close together as the machine allows: a moment before the wall clock was read,
/// that, and a moment after it.
pub(crate) fn read_at_once(clock: &dyn Clock) -> (Moment, Duration, Moment) {
    let read = || (clock.now(), clock.wall(), clock.now());
    let mut readings = read();
    for _ in 1..READINGS {
        let (earliest, _, latest) = readings;
        if latest.since(earliest) <= AT_ONCE {
            break;
        }
        readings = read();
    }
    readings
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    fn taken(steps: &[i64]) -> Pauses {
        let mut pauses = Pauses::since(7_000 * MS);
        let mut offset = 7_000 * MS;
        for step in steps {
            offset += step;
            if pauses.is_step(offset) {
                pauses.take(offset);
            }
        }
        pauses
    }

    #[test]
    fn steps_forward_add_up_and_steps_back_take_nothing_away() {
        assert_eq!(taken(&[900 * MS, -900 * MS, 900 * MS]).sum(), Duration::from_millis(1_800));
        assert!(taken(&[900 * MS, -5_000 * MS, 900 * MS]).are_doubtful());
        assert!(!taken(&[900 * MS, 50 * MS]).are_doubtful());
        assert_eq!(taken(&[-3_600_000 * MS]).sum(), Duration::ZERO);
    }

    #[test]
    fn accumulated_small_steps_count() {
        assert_eq!(taken(&[4 * MS]).sum(), Duration::ZERO);
        assert_eq!(taken(&[4 * MS, 4 * MS]).sum(), Duration::from_millis(8));
        let noise: Vec<_> =
            (0..100_000).map(|n| if n % 2 == 0 { 4 * MS } else { -4 * MS }).collect();
        assert_eq!(taken(&noise).sum(), Duration::ZERO);
    }
}
