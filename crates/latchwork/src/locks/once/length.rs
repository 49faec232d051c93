//! Lengths of time as people write them.

use std::time::Duration;

/// `44m 30s`, `15h 44m`, `3d 2h`: the two largest units.
pub(super) fn shown(length: Duration) -> String {
    let seconds = length.as_secs();
    let units = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let first = units.iter().position(|(unit, _)| seconds >= *unit).unwrap_or(units.len() - 1);
    let (unit, name) = units[first];
    let mut text = format!("{}{name}", seconds / unit);
    if let Some((next, name)) = units.get(first + 1) {
        let rest = seconds % unit / next;
        if rest > 0 {
            text += &format!(" {rest}{name}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_has_its_two_largest_units() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (2_670, "44m 30s"),
            (56_669, "15h 44m"),
            (86_405, "1d"),
            (9_000_000, "104d 4h"),
        ] {
            assert_eq!(shown(Duration::from_secs(seconds)), text);
        }
    }
}
