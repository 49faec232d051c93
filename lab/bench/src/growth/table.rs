//! A curve as tables: what was measured at each size, and how each cost grows. A size that would take too long is left
//! out, and the table says so.

use std::time::{Duration, Instant};

use crate::bars::{self, Curve as Chart};
use crate::goals::{Goal, Verdict};
use crate::growth::exponent::{NOISE, Of, Point, exponent, limit, upper_half};
use crate::roles::Outcome;
use crate::stats::{head, number, row, shortened};

/// The variable that changes how long a curve may take, in seconds.
const VARIABLE: &str = "LATCHWORK_GROWTH_SECONDS";
/// No cost here grows more steeply than that; what seems to is noise.
const STEEPEST: f64 = 2.0;

/// One cost of a curve.
pub(crate) struct Column {
    title: &'static str,
    unit: &'static str,
    /// What it may grow like; nothing if it is no cost.
    of: Option<Of>,
    chart: Option<&'static Chart>,
}

impl Column {
    /// A number that is no cost.
    pub(crate) const fn plain(title: &'static str, unit: &'static str) -> Self {
        Self { title, unit, of: None, chart: None }
    }

    /// The cost of one of them.
    pub(crate) const fn each(title: &'static str, unit: &'static str) -> Self {
        Self { title, unit, of: Some(Of::Each), chart: None }
    }

    /// The cost of all of them together.
    pub(crate) const fn all(title: &'static str, unit: &'static str) -> Self {
        Self { title, unit, of: Some(Of::All), chart: None }
    }

    /// Draws it, too.
    pub(crate) const fn drawn(mut self, chart: &'static Chart) -> Self {
        self.chart = Some(chart);
        self
    }
}

/// How long curves may take.
pub(crate) struct Budget {
    begun: Instant,
    seconds: f64,
}

impl Budget {
    /// What the environment allows, beginning now.
    pub(crate) fn begin() -> Outcome<Self> {
        let seconds = match std::env::var(VARIABLE) {
            Err(_) => shortened(160.0, 40.0),
            Ok(text) => text.parse().map_err(|_| format!("{VARIABLE}: {text:?} is no number"))?,
        };
        Ok(Self { begun: Instant::now(), seconds })
    }

    /// How long it may still take. At the end, a moment: what is under way is ended.
    pub(crate) fn left(&self) -> Duration {
        let left = self.seconds - self.begun.elapsed().as_secs_f64();
        Duration::from_secs_f64(left.max(1.0))
    }
}

/// As the last two sizes have grown, but at least in proportion; `None` before the first.
fn forecast(took: &[Point], size: f64) -> Option<f64> {
    let (last, seconds) = *took.last()?;
    let power = match took {
        [.., (before, less), _] if *less > 0.0 => (seconds / less).ln() / (last / before).ln(),
        _ => 1.0,
    };
    Some(seconds * (size / last).powf(power.clamp(1.0, STEEPEST)))
}

/// What was measured at a size.
pub(crate) struct Seen<const N: usize> {
    /// In the order of the columns.
    pub(crate) values: [f64; N],
    /// Of something that must not be: how much of it there was.
    pub(crate) wrong: Option<f64>,
    /// How much of the time does not grow with the size. Without that it tells nothing of larger ones.
    pub(crate) fixed: Option<Duration>,
}

/// What is measured at growing sizes.
pub(crate) struct Curve<'a, const N: usize> {
    /// Whose curve it is: a store, or a lock on it.
    pub(crate) name: String,
    /// What grows.
    pub(crate) size: &'static str,
    pub(crate) columns: &'static [Column; N],
    pub(crate) sizes: &'a [usize],
    /// What must be at each size, of what there must be nothing, and what failed if a size was not measured.
    pub(crate) promise: [&'static str; 3],
    /// The curve of another lock has nothing to reach.
    pub(crate) has_goals: bool,
}

impl<const N: usize> Curve<'_, N> {
    /// Measures and prints each size, and then how each cost grows, and which grows more steeply than n log n.
    pub(crate) fn run(
        &self,
        budget: &Budget,
        mut measure: impl FnMut(usize) -> Outcome<Seen<N>>,
    ) -> Outcome {
        let [promise, wrong, failed] = self.promise;
        println!("{}, by {}:\n", self.name, self.size);
        let titles = self.columns.each_ref().map(|column| column.title);
        head(&format!("{} | {}", self.size, titles.join(" | ")));
        let mut points = [(); N].map(|()| Vec::<Point>::new());
        let (mut took, mut verdicts) = (Vec::new(), Vec::new());
        for &size in self.sizes {
            let at = |what: &str| format!("{what}, {} {}", grouped(size as f64), self.size);
            let seconds = forecast(&took, size as f64).unwrap_or_default();
            if seconds > budget.left().as_secs_f64() {
                let seconds = format!("about {seconds:.0} s, as the sizes before have grown");
                println!("\n{} would take {seconds}.", at("Left out"));
                break;
            }
            let begun = Instant::now();
            let seen = match measure(size) {
                Ok(seen) => seen,
                Err(why) if !failed.is_empty() => {
                    println!("\nNot measured: {size} {}: {why}.", self.size);
                    let goal = Goal::at_most(0.0).of("failures");
                    verdicts.push((at(failed), goal.judge(1.0)));
                    break;
                }
                Err(why) => return Err(why),
            };
            if let Some(fixed) = seen.fixed {
                let grows = begun.elapsed().saturating_sub(fixed).as_secs_f64();
                took.push((size as f64, grows));
            }
            let mut cells = vec![grouped(size as f64)];
            for ((column, points), value) in self.columns.iter().zip(&mut points).zip(seen.values) {
                points.push((size as f64, value));
                let unit = if column.unit.is_empty() { "" } else { " " };
                cells.push(format!("{}{unit}{}", number(value), column.unit));
                if let Some(chart) = column.chart {
                    bars::note(chart.name, &self.name, &size.to_string(), value);
                }
            }
            row(&cells);
            let goal = Goal::at_most(0.0).of(wrong);
            verdicts.extend(seen.wrong.map(|wrong| (at(promise), goal.judge(wrong))));
        }
        println!("\n{}, exponents by {}:\n", self.name, self.size);
        head("cost | exponent | over the upper half | n log n there | goal");
        for (column, points) in self.columns.iter().zip(&points) {
            let Some(of) = column.of else { continue };
            let mut cells = growth(column.title, of, points);
            if !self.has_goals {
                cells[4] = "-".into();
            }
            row(&cells);
        }
        for (what, verdict) in verdicts.iter().filter(|_| self.has_goals) {
            row(&[what.clone(), "-".into(), "-".into(), "-".into(), Verdict::to_string(verdict)]);
        }
        println!();
        Ok(())
    }
}

/// The row of one cost.
fn growth(title: &str, of: Of, points: &[Point]) -> [String; 5] {
    let upper = upper_half(points);
    let shown = |exponent: Option<f64>| exponent.map_or("-".into(), |it| format!("{it:.2}"));
    let (seen, most) = (exponent(upper), limit(upper, of));
    let goal = seen.zip(most).map_or("-".into(), |(seen, most)| {
        let most = ((most + NOISE) * 100.0).round() / 100.0;
        Goal::at_most(most).of("exponent").judge(seen).to_string()
    });
    let of = if of == Of::All { "all" } else { "each" };
    [format!("{title} ({of})"), shown(exponent(points)), shown(seen), shown(most), goal]
}

/// With a comma between thousands.
fn grouped(size: f64) -> String {
    let digits = size.to_string();
    if digits.len() < 4 || digits.contains('.') {
        return digits;
    }
    let (rest, last) = digits.split_at(digits.len() - 3);
    format!("{},{last}", grouped(rest.parse().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_steeper_than_n_log_n_is_marked() {
        let goal_of = |of, power: f64| {
            let points = [1.0, 10.0, 100.0, 1_000.0, 10_000.0].map(|n: f64| (n, n.powf(power)));
            growth("drain", of, &points)[4].clone()
        };
        for (of, power) in [(Of::All, 1.0), (Of::All, 1.1), (Of::Each, 0.0), (Of::Each, -0.5)] {
            assert!(goal_of(of, power).ends_with("holds"), "{of:?} {power}");
        }
        for (of, power) in [(Of::All, 1.5), (Of::All, 2.0), (Of::Each, 0.5), (Of::Each, 1.0)] {
            assert!(goal_of(of, power).contains("MISSED"), "{of:?} {power}");
        }
    }

    #[test]
    fn a_forecast_follows_the_growth_of_the_last_sizes() {
        let close = |took: &[Point], wanted: f64| {
            let seen = forecast(took, 10_000.0).unwrap();
            assert!((seen / wanted - 1.0).abs() < 1e-9, "{seen} instead of {wanted}");
        };
        assert_eq!(forecast(&[], 10.0), None);
        close(&[(1_000.0, 2.0)], 20.0);
        close(&[(100.0, 1.0), (1_000.0, 10.0)], 100.0);
        close(&[(100.0, 1.0), (1_000.0, 1.0)], 10.0);
        close(&[(100.0, 0.001), (1_000.0, 10.0)], 1_000.0);
    }

    #[test]
    fn a_size_has_commas_between_thousands() {
        let cases =
            [(1.0, "1"), (999.0, "999"), (1_000.0, "1,000"), (1e6, "1,000,000"), (0.5, "0.5")];
        for (size, text) in cases {
            assert_eq!(grouped(size), text);
        }
    }
}
