//! How long things took: counts in buckets, so that millions of them take a few kilobytes.
//!
//! Bucket `n` has what took 2^(n/16) to 2^((n+1)/16) nanoseconds, so a time is known to 2 %. The peers in other
//! languages count in the same buckets; `peers/rust` is built with this file too.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

/// Buckets to twice the time; 640 of them reach to 18 minutes.
const PER_DOUBLE: f64 = 16.0;
const BUCKETS: usize = 640;

#[derive(Clone, Debug)]
pub(crate) struct Times(Vec<u64>);

impl Default for Times {
    fn default() -> Self {
        Self(vec![0; BUCKETS])
    }
}

impl Times {
    pub(crate) fn record(&mut self, nanos: u64) {
        let bucket = ((nanos.max(1) as f64).log2() * PER_DOUBLE) as usize;
        self.0[bucket.min(BUCKETS - 1)] += 1;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, more)| *sum += more);
    }

    pub(crate) fn merged<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut sum = Self::default();
        all.into_iter().for_each(|times| sum.merge(times));
        sum
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The microseconds that `part` of the times do not exceed.
    pub(crate) fn quantile(&self, part: f64) -> f64 {
        let wanted = (self.count() as f64 * part).max(1.0);
        let mut seen = 0;
        let bucket = self.0.iter().position(|count| {
            seen += count;
            seen as f64 >= wanted
        });
        let middle = |bucket| ((bucket as f64 + 0.5) / PER_DOUBLE).exp2() / 1e3;
        bucket.map_or(f64::NAN, middle)
    }

    /// Splits what a process says into its numbers and its times, each behind the word `times`.
    pub(crate) fn after_numbers(line: &str) -> Result<(Vec<f64>, Vec<Self>), String> {
        let mut parts = line.split("times");
        let numbers = parts.next().unwrap_or_default().split_whitespace();
        let numbers: Result<_, _> = numbers.map(str::parse).collect();
        let numbers = numbers.map_err(|_| format!("{line:?} has no numbers"))?;
        Ok((numbers, parts.map(str::parse).collect::<Result<_, _>>()?))
    }
}

/// `BUCKET:COUNT` of each that is not empty.
impl Display for Times {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for (bucket, count) in self.0.iter().enumerate().filter(|(_, count)| **count > 0) {
            write!(f, "{between}{bucket}:{count}")?;
            between = " ";
        }
        Ok(())
    }
}

impl FromStr for Times {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut times = Self::default();
        for word in text.split_whitespace() {
            let pair = word.split_once(':').and_then(|(bucket, count)| {
                Some((times.0.get_mut(bucket.parse::<usize>().ok()?)?, count.parse::<u64>().ok()?))
            });
            let (bucket, count) = pair.ok_or_else(|| format!("no bucket and count: {word:?}"))?;
            *bucket += count;
        }
        Ok(times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_known_to_two_percent() {
        let mut times = Times::default();
        (1..=1_000).for_each(|micros| times.record(micros * 1_000));
        for part in [0.1, 0.5, 0.9, 0.99, 1.0] {
            let (seen, real) = (times.quantile(part), part * 1_000.0);
            assert!((seen / real - 1.0).abs() < 0.045, "{part}: {seen} instead of {real}");
        }
        assert!(Times::default().quantile(0.5).is_nan());
    }

    #[test]
    fn a_line_has_numbers_and_then_times() {
        let mut one = Times::default();
        [0, 1_000, 1_000, u64::MAX].iter().for_each(|nanos| one.record(*nanos));
        let (numbers, times) = Times::after_numbers(&format!("3 0.5 times {one} times")).unwrap();
        assert_eq!((numbers, times[0].to_string()), (vec![3.0, 0.5], "0:1 159:2 639:1".into()));
        assert_eq!((times.len(), Times::merged(&times).count()), (2, 4));
        for wrong in ["3 x times", "3 times 159", "3 times 640:1"] {
            assert!(Times::after_numbers(wrong).is_err(), "{wrong}");
        }
    }
}
