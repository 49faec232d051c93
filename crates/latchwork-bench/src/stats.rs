//! Medians and tables.

use crate::goals::Verdict;

/// The value below which `part` of the samples lie.
pub(crate) fn quantile(samples: &mut [f64], part: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let last = samples.len().saturating_sub(1);
    samples.get((last as f64 * part).round() as usize).copied().unwrap_or(f64::NAN)
}

/// What is measured in a run, or the second, smaller one if `LATCHWORK_BENCH_SHORT` is set: to see
/// whether a measurement works, not for numbers to keep.
pub(crate) fn shortened<T>(whole: T, short: T) -> T {
    if is_short() { short } else { whole }
}

pub(crate) fn is_short() -> bool {
    std::env::var_os("LATCHWORK_BENCH_SHORT").is_some()
}

/// With as many digits as are worth reading.
pub(crate) fn number(value: f64) -> String {
    match value {
        value if value.abs() < 100.0 => format!("{value:.2}"),
        value => format!("{value:.0}"),
    }
}

pub(crate) fn median(samples: &mut [f64]) -> f64 {
    quantile(samples, 0.5)
}

/// One line of a Markdown table.
pub(crate) fn row(cells: &[String]) {
    println!("| {} |", cells.join(" | "));
}

/// The head of a Markdown table.
pub(crate) fn head(cells: &[&str]) {
    row(&cells.iter().map(ToString::to_string).collect::<Vec<_>>());
    row(&cells.iter().map(|_| "---".to_string()).collect::<Vec<_>>());
}

/// Median, 90th percentile and number of samples, in microseconds; and what became of a goal.
pub(crate) fn spread(name: &str, samples: &mut [f64], goal: impl FnOnce(f64) -> Option<Verdict>) {
    let (mid, high) = (median(samples), quantile(samples, 0.9));
    row(&[
        name.to_string(),
        format!("{mid:.1} us"),
        format!("{high:.1} us"),
        goal(mid).map_or("-".into(), |verdict| verdict.to_string()),
        samples.len().to_string(),
    ]);
}

/// A time that was measured in microseconds.
pub(crate) fn micros(micros: f64) -> String {
    match micros {
        m if m < 100.0 => format!("{m:.1} us"),
        m if m < 10_000.0 => format!("{m:.0} us"),
        m if m < 1e6 => format!("{:.1} ms", m / 1e3),
        m => format!("{:.2} s", m / 1e6),
    }
}
