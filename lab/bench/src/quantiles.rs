//! What the counts of `times.rs` say, merged over processes.

use std::str::FromStr;

use crate::times::{PER_DOUBLE, Times};

impl FromStr for Times {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut times = Self::default();
        for word in text.split_whitespace() {
            let wrong = || format!("no bucket and its count: {word:?}");
            let (bucket, count) = word.split_once(':').ok_or_else(wrong)?;
            let bucket: usize = bucket.parse().map_err(|_| wrong())?;
            let count: u64 = count.parse().map_err(|_| wrong())?;
            *times.0.get_mut(bucket).ok_or_else(wrong)? += count;
        }
        Ok(times)
    }
}

impl Times {
    /// Splits what a process says into its numbers and its times.
    pub(crate) fn after_numbers(line: &str) -> Result<(Vec<f64>, Self), String> {
        let parts = line.split_once("times").ok_or_else(|| format!("{line:?} has no times"));
        let (numbers, times) = parts?;
        let numbers = numbers.split_whitespace().map(str::parse).collect::<Result<_, _>>();
        Ok((numbers.map_err(|_| format!("{line:?} has no numbers"))?, times.parse()?))
    }

    /// The microseconds that `part` of the times do not exceed.
    pub(crate) fn quantile(&self, part: f64) -> f64 {
        let wanted = (self.0.iter().sum::<u64>() as f64 * part).max(1.0);
        let mut seen = 0;
        let bucket = self.0.iter().position(|count| {
            seen += count;
            seen as f64 >= wanted
        });
        let middle = |bucket| ((bucket as f64 + 0.5) / PER_DOUBLE).exp2() / 1e3;
        bucket.map_or(f64::NAN, middle)
    }
}

#[cfg(test)]
mod tests {
    use crate::times::Times;

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
    fn merged_times_round_trip() {
        let (mut one, mut two) = (Times::default(), Times::default());
        one.record(1_000);
        two.record(1_000);
        two.record(1_000_000_000);
        one.merge(&two);
        assert_eq!(one.to_string(), "159:2 478:1");
        let read: Times = one.to_string().parse().unwrap();
        assert_eq!(read.to_string(), one.to_string());
        assert!((read.quantile(0.5) - 1.0).abs() < 0.03 && read.quantile(0.9) > 9e5);
        assert!("159".parse::<Times>().is_err() && "640:1".parse::<Times>().is_err());
    }

    #[test]
    fn the_least_and_the_most_have_buckets() {
        let mut times = Times::default();
        times.record(0);
        times.record(u64::MAX);
        assert_eq!(times.to_string(), "0:1 639:1");
    }

    #[test]
    fn a_line_has_numbers_and_then_times() {
        let (numbers, times) = Times::after_numbers("3 0.5 times 159:2").unwrap();
        assert_eq!((numbers, times.to_string()), (vec![3.0, 0.5], "159:2".to_string()));
        assert!(Times::after_numbers("3 0.5").unwrap_err().contains("no times"));
    }
}
