//! The findings when a store is examined: whether it is fit for locks, and how to fix it.
//!
//! A store is examined by its own crate, which knows what can be wrong with it; here are the words
//! that all of them use. The [facade](https://docs.rs/latchwork) chooses the crate by the address.

mod tested;

use std::fmt;
use std::sync::Arc;

use crate::error::BackendError;

pub use tested::{Tested, untested};

/// Returns a text as a word of a POSIX shell, for a line that somebody types.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Returns a text as a word of a POSIX shell, for a line that somebody types: as it is, if no shell changes it.
///
/// Characters that do not show, such as a line break, are numbers that `printf` of the shell turns back, because the
/// line is printed on a terminal. A line break at the end is lost in that.
pub fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    if !text.chars().any(does_not_show) {
        return quoted(text);
    }
    let mut format = String::new();
    for byte in text.bytes() {
        match byte {
            b'%' => format.push_str("%%"),
            byte if is_plain(byte.into()) || byte == b' ' => format.push(byte.into()),
            byte => format.push_str(&format!("\\{byte:03o}")),
        }
    }
    format!("\"$(printf '{format}')\"")
}

/// Returns a name as the operand of a command: a [`word`], with a `--` before it if it looks like an option.
pub fn operand(name: &str) -> String {
    match name.starts_with('-') {
        true => format!("-- {}", word(name)),
        false => word(name),
    }
}

/// Returns whether a character is for the terminal and not for the reader: a control character, or one that turns
/// the writing direction or takes no column.
pub fn does_not_show(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
        )
}

/// The severity of a finding, from good to bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum Severity {
    /// Good.
    Ok,
    /// Worth knowing; no action is needed.
    Info,
    /// Locks work now, but something will make them fail, slow or unsafe.
    Warning,
    /// Locks do not work, or two holders may rely on the same lock.
    Critical,
}

impl Severity {
    /// Returns the name: `ok`, `info`, `warning`, `critical`.
    pub const fn word(self) -> &'static str {
        match self {
            Severity::Ok => "ok",
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Critical => "critical",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Finding {
    /// Its severity.
    pub severity: Severity,
    /// The subject, by a name that never changes: `eviction-policy`. Programs may compare it. A
    /// store may report the same code several times, once for each of its nodes.
    pub code: &'static str,
    /// The part of the store, if it has parts: a node's address.
    pub part: Option<Arc<str>>,
    /// The facts, in one line.
    pub found: String,
    /// The consequence for locks, in one line; empty if there is none.
    pub consequence: String,
    /// The remedy, in one line; empty if none is needed.
    pub remedy: String,
}

impl Finding {
    /// Creates a finding that is good.
    pub fn ok(code: &'static str, found: impl Into<String>) -> Self {
        Self::new(Severity::Ok, code, found)
    }

    /// Creates a finding that is worth knowing.
    pub fn info(code: &'static str, found: impl Into<String>) -> Self {
        Self::new(Severity::Info, code, found)
    }

    /// Creates a finding that will do harm.
    pub fn warning(code: &'static str, found: impl Into<String>) -> Self {
        Self::new(Severity::Warning, code, found)
    }

    /// Creates a finding that breaks locks.
    pub fn critical(code: &'static str, found: impl Into<String>) -> Self {
        Self::new(Severity::Critical, code, found)
    }

    fn new(severity: Severity, code: &'static str, found: impl Into<String>) -> Self {
        Self {
            severity,
            code,
            part: None,
            found: found.into(),
            consequence: String::new(),
            remedy: String::new(),
        }
    }

    /// Adds the consequence.
    #[must_use]
    pub fn consequence(mut self, line: impl Into<String>) -> Self {
        self.consequence = line.into();
        self
    }

    /// Adds the remedy.
    #[must_use]
    pub fn remedy(mut self, line: impl Into<String>) -> Self {
        self.remedy = line.into();
        self
    }

    /// Creates a critical finding for a part of the store that cannot be reached. The next step of
    /// the error is the remedy, or `otherwise` if it has none.
    pub fn out_of_reach(error: &BackendError, otherwise: &str) -> Self {
        let remedy = error.next_step.as_deref().unwrap_or(otherwise);
        Self::critical("reachable", error.message.clone()).remedy(remedy)
    }

    /// Adds the part of the store.
    #[must_use]
    pub fn part(mut self, part: impl Into<Arc<str>>) -> Self {
        self.part = Some(part.into());
        self
    }
}

/// All findings for one store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The store's address, without secrets.
    pub store: Arc<str>,
    /// The findings, in the order of the examination.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Creates an empty report on a store.
    pub fn new(store: impl Into<Arc<str>>) -> Self {
        Self { store: store.into(), findings: Vec::new() }
    }

    /// Adds a finding.
    pub fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    /// Returns the worst severity of the findings.
    pub fn worst(&self) -> Severity {
        self.findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Ok)
    }

    /// Returns whether no finding is critical.
    pub fn is_fit(&self) -> bool {
        self.worst() < Severity::Critical
    }

    /// Returns the first finding with this code.
    pub fn find(&self, code: &str) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.code == code)
    }
}

/// The result of preparing a store for its first locks.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Prepared {
    /// The store's address, without secrets.
    pub store: Arc<str>,
    /// The steps that were taken, a line each; none if the store needs no preparation.
    pub steps: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_critical_findings_make_a_store_unfit() {
        let mut report = Report::new("mem:");
        assert_eq!((report.worst(), report.is_fit()), (Severity::Ok, true));
        report.add(Finding::warning("persistence", "none"));
        report.add(Finding::ok("version", "7.0.15"));
        assert_eq!((report.worst(), report.is_fit()), (Severity::Warning, true));
        report.add(Finding::critical("eviction-policy", "allkeys-lru").part("10.0.0.1:6379"));
        assert_eq!((report.worst(), report.is_fit()), (Severity::Critical, false));
        assert_eq!(report.find("version").unwrap().severity, Severity::Ok);
        assert_eq!(report.find("nothing"), None);
    }

    #[test]
    fn a_word_is_quoted_only_where_a_shell_changes_it() {
        for (text, typed) in [
            ("shop/stock:42", "shop/stock:42"),
            ("redis://h?guard=true", "'redis://h?guard=true'"),
            ("it's", r"'it'\''s'"),
            ("", "''"),
            ("Straße", "'Straße'"),
            ("a b%\n'\u{202e}", r#""$(printf 'a b%%\012\047\342\200\256')""#),
        ] {
            assert_eq!(word(text), typed);
        }
        assert_eq!(operand("-rf x"), "-- '-rf x'");
        assert_eq!(operand("x"), "x");
    }
}
