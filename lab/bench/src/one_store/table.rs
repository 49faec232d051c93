//! What was measured, for people and for programs.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Measured, Plan, Workload};

const HEAD: [&str; 9] = [
    "WORKLOAD",
    "PAIRS/S",
    "HANDOVERS/S",
    "MEDIAN",
    "99 %",
    "FAIRNESS",
    "STARVED",
    "LOST",
    "OVERLAPS",
];

/// A table of all workloads, with columns as wide as their widest cell.
pub(super) fn text(store: &str, plan: &Plan, all: &[(Workload, Measured)]) -> String {
    let mut text = format!("{store}, {} processes", plan.processes);
    let rows = all.iter().map(|(workload, measured)| row(*workload, measured));
    let rows: Vec<_> = std::iter::once(HEAD.map(str::to_owned)).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: [usize; HEAD.len()] = std::array::from_fn(width);
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}  "));
        text.push('\n');
        text.push_str(cells.collect::<String>().trim_end());
    }
    for times in ["acquire and release", "from a release to the next hold"] {
        let of: Vec<_> =
            all.iter().filter(|(w, _)| w.times() == times).map(|(w, _)| w.name()).collect();
        if !of.is_empty() {
            text.push_str(&format!("\ntimes of {}: {times}", of.join("; ")));
        }
    }
    text
}

/// All workloads as one value.
pub(super) fn json(store: &str, plan: &Plan, all: &[(Workload, Measured)]) -> Value {
    json!({
        "store": store,
        "seconds": plan.length.as_secs_f64(),
        "processes": plan.processes,
        "workloads": Value::from_iter(all.iter().map(|(workload, m)| workload_json(*workload, m))),
    })
}

fn row(workload: Workload, measured: &Measured) -> [String; HEAD.len()] {
    let none = || "-".to_owned();
    [
        workload.name().to_owned(),
        format!("{:.0}", measured.rate(measured.pairs)),
        measured.handovers.map_or_else(none, |n| format!("{:.0}", measured.rate(n))),
        measured.quantile(0.5).map_or_else(none, short),
        measured.quantile(0.99).map_or_else(none, short),
        measured.fairness.map_or_else(none, |jain| format!("{jain:.3}")),
        measured.starved.map_or_else(none, |n| n.to_string()),
        if measured.handovers.is_some() { measured.lost.to_string() } else { none() },
        if measured.handovers.is_some() { measured.overlaps.to_string() } else { none() },
    ]
}

fn workload_json(workload: Workload, measured: &Measured) -> Value {
    let micros = |part| measured.quantile(part).map(|time| time.as_nanos() as f64 / 1e3);
    json!({
        "name": workload.name(),
        "times": workload.times(),
        "pairs_per_second": measured.rate(measured.pairs),
        "handovers_per_second": measured.handovers.map(|n| measured.rate(n)),
        "median_us": micros(0.5),
        "p99_us": micros(0.99),
        "fairness": measured.fairness,
        "starved": measured.starved,
        "lost": measured.handovers.map(|_| measured.lost),
        "overlaps": measured.handovers.map(|_| measured.overlaps),
    })
}

fn short(length: Duration) -> String {
    let micros = length.as_nanos() as f64 / 1e3;
    if micros < 10_000.0 { format!("{micros:.0} us") } else { format!("{:.0} ms", micros / 1e3) }
}
