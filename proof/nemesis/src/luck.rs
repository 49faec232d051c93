//! Random numbers from a seed, so that what was drawn can be drawn again.

use std::ops::Range;
use std::time::Duration;

/// A sequence of random numbers (splitmix64).
#[derive(Debug, Clone)]
pub struct Luck(u64);

impl Luck {
    /// The sequence of a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The sequence of a part of the run: parts with different names do not draw the same.
    pub fn of(seed: u64, part: u64) -> Self {
        let mut luck = Self(seed ^ part.wrapping_mul(0xd129_0d3b_2a2f_65a9));
        Self(luck.next())
    }

    /// A sequence of its own for another thread.
    pub(crate) fn part(&mut self) -> Self {
        Self(self.next())
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "it never ends and is no collection")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 up to, not including, `end`; 0 if that is 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % (end.max(1) as u64)) as usize
    }

    /// True this many times in a hundred.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.next() % 100 < chance
    }

    /// A duration between two multiples of `unit`.
    pub fn times(&mut self, unit: Duration, range: Range<f64>) -> Duration {
        let share = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        unit.mul_f64((range.start + share * (range.end - range.start)).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same() {
        let draw = |seed, part| {
            let mut luck = Luck::of(seed, part);
            [luck.next(), luck.next(), luck.next()]
        };
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(1, 3));
        assert_ne!(draw(1, 2), draw(2, 2));
    }

    #[test]
    fn random_values_stay_in_range() {
        let mut luck = Luck::new(4);
        let unit = Duration::from_secs(1);
        for _ in 0..1_000 {
            let drawn = luck.times(unit, 0.5..3.0);
            assert!(drawn >= unit / 2 && drawn < unit * 3, "{drawn:?}");
            assert!(luck.below(7) < 7);
        }
        assert_eq!(luck.below(0), 0);
    }
}
