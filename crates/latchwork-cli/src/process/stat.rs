//! The line of `/proc/PID/stat`.

use std::str::FromStr;

/// Such a line, from its third field on: the second is the command's name, which may itself hold spaces and
/// parentheses.
pub(crate) struct StatLine<'a>(&'a str);

impl<'a> StatLine<'a> {
    pub(crate) fn of(line: &'a str) -> Option<Self> {
        Some(Self(&line[line.rfind(')')? + 1..]))
    }

    /// A field by its number in proc(5), from 3 on.
    pub(crate) fn field(&self, number: usize) -> Option<&'a str> {
        self.0.split_ascii_whitespace().nth(number - 3)
    }

    /// A field that is a number.
    pub(crate) fn number<T: FromStr>(&self, number: usize) -> Option<T> {
        self.field(number)?.parse().ok()
    }
}
