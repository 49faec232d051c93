//! Which random histories a differential test plays.

use std::ops::Range;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// The one that `LATCHWORK_SEED` names, else as many as `LATCHWORK_HISTORIES` or the test says.
pub(crate) fn seeds(histories: u64) -> Range<u64> {
    match number("LATCHWORK_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("LATCHWORK_HISTORIES").unwrap_or(histories),
    }
}
