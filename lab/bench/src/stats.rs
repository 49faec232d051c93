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

/// In which order so many are measured in a round: each time another one is the first.
pub(crate) fn turns(round: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |n| (n + round) % count)
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
    println!("{}", line(cells));
}

/// A ratio to nothing is no number to print.
fn line(cells: &[String]) -> String {
    let is_number = |cell: &&String| !["NaN", "inf"].iter().any(|word| cell.starts_with(word));
    let cell = |cell| Some(cell).filter(is_number).map_or("-", String::as_str);
    format!("| {} |", cells.iter().map(cell).collect::<Vec<_>>().join(" | "))
}

/// The row of what cannot be measured here.
pub(crate) fn missing_row(name: &str, reason: &str, columns: usize) {
    let mut cells = vec![name.to_string(), format!("missing: {reason}")];
    cells.resize(columns, "-".into());
    row(&cells);
}

/// The head of a Markdown table, of titles with bars between them; how many they are.
pub(crate) fn head(titles: &str) -> usize {
    let titles: Vec<String> = titles.split(" | ").map(str::to_owned).collect();
    row(&titles);
    row(&titles.iter().map(|_| "---".to_string()).collect::<Vec<_>>());
    titles.len()
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

/// The lowest and the highest, with so many digits.
pub(crate) fn range(values: impl Iterator<Item = f64>, digits: usize) -> String {
    let both = |(low, high): (f64, f64), value: f64| (value.min(low), value.max(high));
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), both);
    format!("{low:.digits$} to {high:.digits$}")
}

/// What the best of the others has.
#[derive(Clone, Copy)]
pub(crate) enum Best {
    Most,
    Least,
}

/// How often as much Latchwork has as the best of the others and as the measuring rods, in a sentence.
pub(crate) fn beside(
    ours: f64,
    others: &[(&str, f64)],
    rods: &[(&str, f64)],
    best: Best,
) -> String {
    let sign = if matches!(best, Best::Most) { 1.0 } else { -1.0 };
    let best = others.iter().filter(|(_, value)| value.is_finite());
    let best = best.max_by(|a, b| (sign * a.1).total_cmp(&(sign * b.1)));
    let best = best
        .map(|(name, value)| format!("the best of the others, {name}: {}", number(ours / value)));
    let rods = rods.iter().map(|(name, value)| format!("{name}: {}", number(ours / value)));
    let parts: Vec<String> = best.into_iter().chain(rods).collect();
    match parts.is_empty() {
        true => "Nothing to compare with.".into(),
        false => format!("Latchwork to {}.", parts.join("; to ")),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_results_name_the_best_peer() {
        let others = [("slow", 10.0), ("quick", 40.0), ("broken", f64::NAN)];
        let told = beside(20.0, &others, &[("floor", 80.0)], Best::Most);
        assert_eq!(told, "Latchwork to the best of the others, quick: 0.50; to floor: 0.25.");
        let told = beside(20.0, &others, &[], Best::Least);
        assert_eq!(told, "Latchwork to the best of the others, slow: 2.00.");
        assert_eq!(beside(20.0, &[], &[], Best::Most), "Nothing to compare with.");
    }

    #[test]
    fn a_value_that_is_not_a_number_is_a_dash() {
        let cells = ["latchwork", "inf", "NaN us", "<= 1: NaN, MISSED by all"].map(str::to_string);
        assert_eq!(line(&cells), "| latchwork | - | - | <= 1: NaN, MISSED by all |");
    }

    #[test]
    fn numbers_have_the_digits_that_are_worth_reading() {
        let cases = [(0.954, "0.95"), (54.031, "54.03"), (243.2, "243"), (f64::NAN, "NaN")];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
        let cases =
            [(36.24, "36.2 us"), (999.6, "1000 us"), (12_345.0, "12.3 ms"), (2.5e6, "2.50 s")];
        for (value, text) in cases {
            assert_eq!(micros(value), text);
        }
    }
}
