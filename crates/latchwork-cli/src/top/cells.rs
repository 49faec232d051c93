//! The texts of the table's cells, none of which can command the terminal.

use std::time::Duration;

use latchwork::store::{Mode, Shape, Snapshot};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::output::coarse;

/// What stands for the rest of a text that does not fit.
const MORE: char = '…';

/// The kind of lock, and how much of it is taken.
pub(crate) fn kind(one: &Snapshot) -> String {
    let is_election =
        one.holders.iter().chain(&one.waiters).any(|it| it.holder.candidate.is_some());
    match one.shape {
        _ if one.holders.is_empty() && one.linger.is_some() => "done".into(),
        _ if is_election => "election".into(),
        None => "-".into(),
        Some(Shape::Mutex) => "mutex".into(),
        Some(Shape::ReadWrite) => match &one.holders[..] {
            [] => "read-write".into(),
            [writer] if writer.mode == Mode::Write => "write".into(),
            readers => format!("read ×{}", readers.len()),
        },
        Some(Shape::Semaphore { of }) => {
            let taken = |mode| match mode {
                Mode::Permits { take, .. } => u64::from(take),
                _ => 1,
            };
            let taken: u64 = one.holders.iter().map(|party| taken(party.mode)).sum();
            format!("permits {taken}/{of}")
        }
    }
}

/// A length of time by its two largest units, such as `2h 5m`.
pub(crate) fn short(length: Duration) -> String {
    let words = coarse(length);
    let mut words = words.split(' ');
    let first = words.next().unwrap_or_default().to_owned();
    match words.next() {
        Some(second) => format!("{first} {second}"),
        None => first,
    }
}

/// A text in exactly so many columns: cut, or with spaces behind it.
pub(crate) fn fit(text: &str, columns: usize) -> String {
    let mut width = text.width();
    let mut out = text.to_owned();
    if width > columns {
        out.clear();
        width = 0;
        for c in text.chars() {
            let next = c.width().unwrap_or(0);
            if width + next + 1 > columns {
                break;
            }
            width += next;
            out.push(c);
        }
        if columns > 0 {
            out.push(MORE);
            width += 1;
        }
    }
    out.extend(std::iter::repeat_n(' ', columns.saturating_sub(width)));
    out
}

/// The same at the right end of the columns, for numbers.
pub(crate) fn fit_right(text: &str, columns: usize) -> String {
    match columns.checked_sub(text.width()) {
        Some(space) => format!("{:space$}{text}", ""),
        None => fit(text, columns),
    }
}

/// A bar of so many columns, filled to `part`, which is at most 1. It is empty only if `part` is 0.
pub(crate) fn bar(part: f64, columns: usize) -> String {
    const EIGHTHS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    // At most a few hundred.
    let eighths = (part.clamp(0.0, 1.0) * columns as f64 * 8.0).ceil() as usize;
    let mut text: String = std::iter::repeat_n('█', eighths / 8).collect();
    if !eighths.is_multiple_of(8) {
        text.push(EIGHTHS[eighths % 8]);
    }
    fit(&text, columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_fill_their_columns_exactly() {
        for (text, columns, fitted) in [
            ("abc", 5, "abc  "),
            ("abcdef", 5, "abcd…"),
            ("锁锁锁", 5, "锁锁…"),
            ("锁锁锁", 4, "锁… "),
            ("ab\u{301}c", 3, "ab\u{301}c"),
            ("abc", 1, "…"),
            ("abc", 0, ""),
        ] {
            assert_eq!(fit(text, columns), fitted, "{text} in {columns}");
            assert_eq!(fit(text, columns).width(), columns);
        }
        assert_eq!(fit_right("12", 4), "  12");
        assert_eq!(fit_right("12345", 4), "123…");
    }

    #[test]
    fn a_bar_drains_to_nothing_at_the_very_end() {
        assert_eq!(bar(1.0, 4), "████");
        assert_eq!(bar(0.5, 4), "██  ");
        assert_eq!(bar(0.53, 4), "██▏ ");
        assert_eq!(bar(0.000_1, 4), "▏   ");
        assert_eq!(bar(0.0, 4), "    ");
    }

    #[test]
    fn lengths_have_two_units_at_most() {
        assert_eq!(short(Duration::from_secs(3_725)), "1h 2m");
        assert_eq!(short(Duration::from_secs(59)), "59s");
    }
}
