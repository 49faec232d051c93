//! What Redis keeps of a claim for people: since when it has asked, and its text.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

/// The digits of a time in milliseconds, from 2001 to 2286.
const DIGITS: usize = 13;

/// What is stored: `<since, ms since 1970>|<text>`.
pub(crate) fn stored(since: Duration, text: &str) -> String {
    let mut stored = String::with_capacity(DIGITS + 1 + text.len());
    store(&mut stored, since, text);
    stored
}

/// Appends what [`stored`] gives.
pub(crate) fn store(to: &mut String, since: Duration, text: &str) {
    // A string takes whatever is written.
    let _ = write!(to, "{:0DIGITS$}|{text}", since.as_millis() as u64);
}

/// The text for people, and since when the claim has asked, on the wall clock of its process.
pub(crate) fn read(stored: &str) -> (Arc<str>, Option<Duration>) {
    match stored.split_once('|') {
        Some((since, text))
            if since.len() == DIGITS && since.bytes().all(|b| b.is_ascii_digit()) =>
        {
            (text.into(), since.parse().ok().map(Duration::from_millis))
        }
        _ => (stored.into(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_comes_back() {
        let since = Duration::from_millis(1_790_000_000_123);
        for text in ["", "host pid 7", "a|b", "1790000000000|x", "\u{e9}:\n"] {
            assert_eq!(read(&stored(since, text)), (text.into(), Some(since)));
        }
        for text in ["", "host pid 7", "a|b", "12|x", "179000000000x|y"] {
            assert_eq!(read(text), (text.into(), None));
        }
    }
}
