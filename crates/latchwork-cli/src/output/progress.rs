//! One line on a terminal that is written again and again.

use std::io;

use rustix::process::getpgrp;
use rustix::termios::{tcgetpgrp, tcgetwinsize};
use unicode_width::UnicodeWidthChar;

use super::{Output, plain, put};

/// Goes to the begin of the line and erases it.
const ERASE: &str = "\r\x1b[K";

impl Output {
    /// Whether a line may be written over: a person reads it, and types nothing into it. In the background of
    /// a shell that would disturb them.
    pub(crate) fn refreshes_lines(&self) -> bool {
        let foreground = || tcgetpgrp(io::stderr()).is_ok_and(|group| group == getpgrp());
        !self.json && !self.verbose && self.tells_waiting() && foreground()
    }

    /// Writes a line over the last one, without a newline, cut to the width of the terminal.
    pub(crate) fn refresh_line(&self, message: &str) {
        if self.refreshes_lines() {
            let columns = tcgetwinsize(io::stderr()).map_or(0, |size| usize::from(size.ws_col));
            let columns = if columns == 0 { 80 } else { columns };
            let text = format!("latchwork: {}", plain(message));
            put(&format!("{ERASE}{}", cut(&text, columns.saturating_sub(1))));
        }
    }

    /// Takes the last line away.
    pub(crate) fn clear_line(&self) {
        if self.refreshes_lines() {
            put(ERASE);
        }
    }
}

/// As much of a text as fits in so many columns, and dots where some is left out.
fn cut(text: &str, columns: usize) -> String {
    const DOTS: &str = "...";
    let (mut width, mut kept) = (0, 0);
    for (at, c) in text.char_indices() {
        width += c.width().unwrap_or(0);
        if width > columns {
            return format!("{}{}", &text[..kept], &DOTS[..columns.min(DOTS.len())]);
        }
        if width + DOTS.len() <= columns {
            kept = at + c.len_utf8();
        }
    }
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_between_characters() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("abc", 2), "..");
        assert_eq!(cut("abcde", 4), "a...");
        assert_eq!(cut("a锁bcd", 5), "a...");
        assert_eq!(cut("a锁bcde", 6), "a锁...");
        assert_eq!(cut("a锁bcd", 6), "a锁bcd");
    }
}
