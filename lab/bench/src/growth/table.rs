//! A curve as tables: what was measured at each size, and how each cost grows.

use crate::bars;
use crate::goals::{self, Goal, Verdict};
use crate::growth::exponent::{NOISE, Of, Point, exponent, limit, upper_half};
use crate::growth::picture::Chart;
use crate::stats::{head, number, row};

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

/// What is measured at growing sizes. Each row is printed once it is known.
pub(crate) struct Curve {
    /// Whose curve it is: a store, or a lock on it.
    name: String,
    /// What grows.
    size: &'static str,
    columns: &'static [Column],
    sizes: Vec<f64>,
    values: Vec<Vec<f64>>,
    verdicts: Vec<(String, Verdict)>,
    has_goals: bool,
}

impl Curve {
    /// Prints the head of its table.
    pub(crate) fn begin(
        name: impl Into<String>,
        size: &'static str,
        columns: &'static [Column],
    ) -> Self {
        let name = name.into();
        println!("{name}, by {size}:\n");
        let mut titles = vec![size];
        titles.extend(columns.iter().map(|column| column.title));
        head(&titles);
        let values = columns.iter().map(|_| Vec::new()).collect();
        Self {
            name,
            size,
            columns,
            sizes: Vec::new(),
            values,
            verdicts: Vec::new(),
            has_goals: true,
        }
    }

    /// The curve of another lock, which has nothing to reach.
    pub(crate) fn without_goals(self) -> Self {
        Self { has_goals: false, ..self }
    }

    /// Adds what was measured at a size, in the order of the columns.
    pub(crate) fn point(&mut self, size: f64, values: &[f64]) {
        assert_eq!(values.len(), self.columns.len(), "a value for each column");
        self.sizes.push(size);
        let mut cells = vec![grouped(size)];
        for ((column, seen), value) in self.columns.iter().zip(&mut self.values).zip(values) {
            seen.push(*value);
            cells.push(match column.unit {
                "" => number(*value),
                unit => format!("{} {unit}", number(*value)),
            });
            if let Some(chart) = column.chart {
                bars::note(chart.name, &self.name, &size.to_string(), *value);
            }
        }
        row(&cells);
    }

    /// Adds something that must be so at a size.
    pub(crate) fn promise(&mut self, size: f64, what: &str, goal: &Goal, reached: f64) {
        let what = format!("{what}, {} {}", grouped(size), self.size);
        self.verdicts.push((what, goal.judge(reached)));
    }

    /// Prints why a size has no costs, which misses a goal. The sizes before it are worth printing.
    pub(crate) fn not_measured(&mut self, size: usize, what: &str, why: &dyn std::error::Error) {
        println!("\nNot measured: {size} {}: {why}.", self.size);
        self.promise(size as f64, what, &Goal::at_most(0.0).of("failures"), 1.0);
    }

    /// Prints what a size would take that is left out.
    pub(crate) fn leave_out(&self, size: usize, seconds: f64) {
        println!(
            "\nLeft out: {} {} would take about {seconds:.0} s, as the sizes before have grown.",
            grouped(size as f64),
            self.size
        );
    }

    /// Prints how each cost grows, and which grows more steeply than n log n.
    pub(crate) fn end(self) {
        println!("\n{}, exponents by {}:\n", self.name, self.size);
        head(&["cost", "exponent", "over the upper half", "n log n there", goals::TITLE]);
        for (column, values) in self.columns.iter().zip(&self.values) {
            let Some(of) = column.of else { continue };
            let points: Vec<Point> =
                self.sizes.iter().copied().zip(values.iter().copied()).collect();
            let mut cells = growth(column.title, of, &points);
            if !self.has_goals {
                cells[4] = "-".into();
            }
            row(&cells);
        }
        for (what, verdict) in self.verdicts.iter().filter(|_| self.has_goals) {
            row(&[what.clone(), "-".into(), "-".into(), "-".into(), verdict.to_string()]);
        }
        println!();
    }
}

/// The row of one cost.
fn growth(title: &str, of: Of, points: &[Point]) -> [String; 5] {
    let upper = upper_half(points);
    let shown = |exponent: Option<f64>| exponent.map_or("-".into(), |it| format!("{it:.2}"));
    let (seen, most) = (exponent(upper), limit(upper, of));
    let goal = match (seen, most) {
        (Some(seen), Some(most)) => {
            let most = ((most + NOISE) * 100.0).round() / 100.0;
            Goal::at_most(most).of("exponent").judge(seen).to_string()
        }
        _ => "-".into(),
    };
    let title = match of {
        Of::All => format!("{title} (all)"),
        Of::Each => format!("{title} (each)"),
    };
    [title, shown(exponent(points)), shown(seen), shown(most), goal]
}

/// With a comma between thousands.
pub(crate) fn grouped(size: f64) -> String {
    let digits = size.to_string();
    if digits.len() < 4 || digits.contains('.') {
        return digits;
    }
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goal_of(of: Of, cost: impl Fn(f64) -> f64) -> String {
        let points: Vec<Point> = [1.0, 10.0, 100.0, 1_000.0, 10_000.0].map(|n| (n, cost(n))).into();
        growth("drain", of, &points)[4].clone()
    }

    #[test]
    fn a_cost_steeper_than_n_log_n_is_marked() {
        for (of, cost) in [(Of::All, 1.0), (Of::All, 1.1), (Of::Each, 0.0), (Of::Each, -0.5)] {
            let goal = goal_of(of, |n| 5.0 * n.powf(cost));
            assert!(goal.ends_with("holds"), "{of:?} {cost}: {goal}");
        }
        for (of, cost) in [(Of::All, 1.5), (Of::All, 2.0), (Of::Each, 0.5), (Of::Each, 1.0)] {
            let goal = goal_of(of, |n| 5.0 * n.powf(cost));
            assert!(goal.contains("MISSED"), "{of:?} {cost}: {goal}");
        }
    }

    #[test]
    fn a_table_of_exponents_is_read_as_goals() {
        let cells = growth("drain", Of::All, &[(1.0, 1.0), (10.0, 100.0), (100.0, 10_000.0)]);
        let titles = "| cost | exponent | over the upper half | n log n there | goal |";
        let text = format!("Redis, exponents:\n\n{titles}\n| {} |\n", cells.join(" | "));
        let told = goals::told(&text).unwrap();
        assert_eq!((told.len(), &*told[0].what), (1, "drain (all)"));
        assert!(told[0].verdict.missed_by.is_some(), "{text}");
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
