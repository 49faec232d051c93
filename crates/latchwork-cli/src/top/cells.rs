//! The texts of the table's cells, none of which can command the terminal.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// What stands for the rest of a text that does not fit.
const MORE: char = '…';

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
}
