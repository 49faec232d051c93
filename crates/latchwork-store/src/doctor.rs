//! What is found when a store is examined: is it fit for locks, and what is to be done if not.
//!
//! A store is examined by its own crate, which knows what can be wrong with it; here are the words
//! that all of them use. The [facade](https://docs.rs/latchwork) chooses the crate by the address.

use std::fmt;
use std::sync::Arc;

use crate::error::BackendError;

/// How bad a finding is. The order is from good to bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum Severity {
    /// As it should be.
    Ok,
    /// Worth knowing, and nothing to do.
    Info,
    /// Locks work today; something will make them fail, slow or unsafe.
    Warning,
    /// Locks do not work, or two holders may believe in the same one.
    Critical,
}

impl Severity {
    /// The word for it: `ok`, `info`, `warning`, `critical`.
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

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was looked at, by a name that never changes: `eviction-policy`. Programs may compare
    /// it. A store may report the same code several times, once for each of its nodes.
    pub code: &'static str,
    /// The part of the store that it is about, where the store has parts: a node's address.
    pub part: Option<Arc<str>>,
    /// What was found, in one line.
    pub found: String,
    /// What follows from it for locks, in one line; empty if nothing does.
    pub consequence: String,
    /// What to do about it, in one line; empty if nothing is to be done.
    pub remedy: String,
}

impl Finding {
    /// Something that is as it should be.
    pub fn ok(code: &'static str, found: impl Into<String>) -> Self {
        Self::new(Severity::Ok, code, found)
    }

    /// Something that is worth knowing.
    pub fn info(code: &'static str, found: impl Into<String>) -> Self {
        Self::new(Severity::Info, code, found)
    }

    /// Something that will do harm.
    pub fn warning(code: &'static str, found: impl Into<String>) -> Self {
        Self::new(Severity::Warning, code, found)
    }

    /// Something that breaks locks.
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

    /// Says what follows from it.
    #[must_use]
    pub fn consequence(mut self, line: impl Into<String>) -> Self {
        self.consequence = line.into();
        self
    }

    /// Says what to do about it.
    #[must_use]
    pub fn remedy(mut self, line: impl Into<String>) -> Self {
        self.remedy = line.into();
        self
    }

    /// A part of the store that cannot be reached: the next step of the error is the remedy, or `otherwise` if it
    /// has none.
    pub fn out_of_reach(error: &BackendError, otherwise: &str) -> Self {
        let remedy = error.next_step.as_deref().unwrap_or(otherwise);
        Self::critical("reachable", error.message.clone()).remedy(remedy)
    }

    /// Says which part of the store it is about.
    #[must_use]
    pub fn part(mut self, part: impl Into<Arc<str>>) -> Self {
        self.part = Some(part.into());
        self
    }
}

/// All that was found at one store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The store's address, without secrets.
    pub store: Arc<str>,
    /// What was found, in the order in which it was looked at.
    pub findings: Vec<Finding>,
}

impl Report {
    /// An empty report on a store.
    pub fn new(store: impl Into<Arc<str>>) -> Self {
        Self { store: store.into(), findings: Vec::new() }
    }

    /// Adds a finding.
    pub fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    /// The worst that was found.
    pub fn worst(&self) -> Severity {
        self.findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Ok)
    }

    /// Whether nothing critical was found.
    pub fn is_fit(&self) -> bool {
        self.worst() < Severity::Critical
    }

    /// The first finding of this code.
    pub fn find(&self, code: &str) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.code == code)
    }
}

/// What was done to prepare a store for its first locks.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Prepared {
    /// The store's address, without secrets.
    pub store: Arc<str>,
    /// What was done, a line each; none if the store needs no preparation.
    pub steps: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_critical_makes_a_store_unfit() {
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
}
