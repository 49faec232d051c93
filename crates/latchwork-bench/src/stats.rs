//! Medians and tables.

/// The value below which `part` of the samples lie.
pub(crate) fn quantile(samples: &mut [f64], part: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let last = samples.len().saturating_sub(1);
    samples.get((last as f64 * part).round() as usize).copied().unwrap_or(f64::NAN)
}

/// What is measured in a run, or the second, smaller one if `LATCHWORK_BENCH_SHORT` is set: to see
/// whether a measurement works, not for numbers to keep.
pub(crate) fn shortened<T>(whole: T, short: T) -> T {
    if std::env::var_os("LATCHWORK_BENCH_SHORT").is_some() { short } else { whole }
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

/// Median, 90th percentile and number of samples, in microseconds.
pub(crate) fn spread(name: &str, samples: &mut [f64]) -> f64 {
    let (mid, high) = (median(samples), quantile(samples, 0.9));
    row(&[
        name.to_string(),
        format!("{mid:.1} us"),
        format!("{high:.1} us"),
        samples.len().to_string(),
    ]);
    mid
}
