//! An axis of a picture on which each power of ten is as long as the one before.

/// More lines than that are no help.
const LINES: i32 = 9;

/// From one power of ten to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LogAxis {
    from: i32,
    to: i32,
}

impl LogAxis {
    /// The shortest that has all these values, from one whole power to the next; one power at least. What
    /// is not above zero has no place on it.
    pub(crate) fn over(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let powers = values.into_iter().filter(|value| *value > 0.0 && value.is_finite());
        let powers: Vec<f64> = powers.map(f64::log10).collect();
        let least = powers.iter().copied().fold(f64::INFINITY, f64::min);
        let most = powers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        // A power of ten that is a little off by its arithmetic is that power.
        let (from, to) = ((least + 1e-9).floor() as i32, (most - 1e-9).ceil() as i32);
        (!powers.is_empty()).then(|| Self { from, to: to.max(from + 1) })
    }

    /// Where a value is, from 0 to 1; `None` if it is not on the axis.
    pub(crate) fn place(&self, value: f64) -> Option<f64> {
        let part = (value.log10() - f64::from(self.from)) / f64::from(self.to - self.from);
        (-1e-9..=1.0 + 1e-9).contains(&part).then(|| part.clamp(0.0, 1.0))
    }

    /// The values that get a line: powers of ten; twice and five times as much between them if there
    /// are few, and not each of them if there are many.
    pub(crate) fn ticks(&self) -> Vec<f64> {
        let length = self.to - self.from;
        let step = (length + LINES - 1) / LINES;
        let between: &[f64] = if length <= 2 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let powers = (self.from..=self.to).step_by(step.max(1) as usize);
        let last = 10f64.powi(self.to);
        powers
            .flat_map(|power| between.iter().map(move |part| part * 10f64.powi(power)))
            .filter(|value| *value <= last * (1.0 + 1e-9))
            .collect()
    }
}

/// A value as it stands beside its line: 0.02, 5, 10k, 2M.
pub(crate) fn label(value: f64) -> String {
    for (unit, suffix) in [(1e9, "G"), (1e6, "M"), (1e3, "k")] {
        if value >= unit * (1.0 - 1e-9) {
            return format!("{}{suffix}", rounded(value / unit));
        }
    }
    rounded(value)
}

/// Without the last digits of its arithmetic.
fn rounded(value: f64) -> String {
    let digits = (-value.abs().max(1e-12).log10()).ceil().max(0.0) as usize + 2;
    let text = format!("{value:.digits$}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(values: &[f64]) -> LogAxis {
        LogAxis::over(values.iter().copied()).unwrap()
    }

    #[test]
    fn an_axis_goes_from_power_to_power() {
        assert_eq!(axis(&[3.0, 7_000.0]), LogAxis { from: 0, to: 4 });
        assert_eq!(axis(&[1.0, 1_000.0]), LogAxis { from: 0, to: 3 });
        assert_eq!(axis(&[0.02, 0.02]), LogAxis { from: -2, to: -1 });
        assert_eq!(axis(&[10.0]), LogAxis { from: 1, to: 2 });
        assert_eq!(axis(&[0.0, f64::NAN, -5.0, 20.0]), LogAxis { from: 1, to: 2 });
        assert_eq!(LogAxis::over([0.0, f64::INFINITY]), None);
    }

    #[test]
    fn ticks_are_powers_of_ten_and_never_many() {
        assert_eq!(axis(&[3.0, 7_000.0]).ticks(), [1.0, 10.0, 100.0, 1_000.0, 10_000.0]);
        let labels: Vec<String> = axis(&[0.2, 7.0]).ticks().into_iter().map(label).collect();
        assert_eq!(labels, ["0.1", "0.2", "0.5", "1", "2", "5", "10"]);
        for power in 1..40 {
            let ticks = LogAxis { from: -3, to: power - 3 }.ticks();
            assert!((4..=10).contains(&ticks.len()), "{power}: {ticks:?}");
            assert!(ticks.is_sorted() && ticks[0] == 10f64.powi(-3), "{ticks:?}");
        }
    }

    #[test]
    fn equal_ratios_are_equally_far_apart() {
        let axis = axis(&[1.0, 10_000.0]);
        let place = |value| axis.place(value).unwrap();
        assert!((place(100.0) - 0.5).abs() < 1e-9 && place(1.0) == 0.0 && place(10_000.0) == 1.0);
        assert!((place(2.0) - place(1.0) - (place(2_000.0) - place(1_000.0))).abs() < 1e-9);
        assert_eq!((axis.place(0.0), axis.place(0.5), axis.place(20_000.0)), (None, None, None));
    }

    #[test]
    fn labels_are_short() {
        let cases = [
            (0.001, "0.001"),
            (0.02, "0.02"),
            (0.1 + 0.2, "0.3"),
            (5.0, "5"),
            (1_000.0, "1k"),
            (20_000.0, "20k"),
            (5e6, "5M"),
            (1e9, "1G"),
        ];
        for (value, text) in cases {
            assert_eq!(label(value), text);
        }
    }
}
