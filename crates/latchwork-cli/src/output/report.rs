//! What was found at a store, and what was prepared there.

use std::fmt::Write as _;

use latchwork_store::doctor::{Finding, Prepared, Report};
use serde_json::json;

use super::{Output, line, plain};

impl Output {
    /// `doctor`: all findings, with consequence and remedy where there is something to know.
    pub(crate) fn report(&self, report: &Report) -> u8 {
        let mut report = report.clone();
        for finding in &mut report.findings {
            finding.consequence = self.hinted(&finding.consequence).into_owned();
            finding.remedy = self.hinted(&finding.remedy).into_owned();
        }
        if self.json {
            return self.print(&line(&json!(report)));
        }
        let mut text = format!("{}\n\n", plain(&report.store));
        let name = |finding: &Finding| match &finding.part {
            Some(part) => format!("{} ({})", finding.code, plain(part)),
            None => finding.code.to_owned(),
        };
        let names: Vec<_> = report.findings.iter().map(name).collect();
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        for (finding, name) in report.findings.iter().zip(&names) {
            let found = plain(&finding.found);
            let _ = writeln!(text, "{:<8}  {name:<width$}  {found}", finding.severity);
            for (word, said) in [("then", &finding.consequence), ("do", &finding.remedy)] {
                if !said.is_empty() {
                    let _ = writeln!(text, "{:10}{word:>width$}  {}", "", plain(said));
                }
            }
        }
        let fit = if report.is_fit() { "fit for locks" } else { "NOT fit for locks" };
        let _ = write!(text, "\n{fit}; the worst is {}", report.worst());
        self.print(&text)
    }

    /// `init`: what was done.
    pub(crate) fn prepared(&self, prepared: &Prepared) -> u8 {
        if self.json {
            return self.print(&line(&json!(prepared)));
        }
        let store = plain(&prepared.store);
        if prepared.steps.is_empty() {
            return self.print(&format!("{store}: this store needs no preparation"));
        }
        let mut text = format!("{store}: prepared");
        for step in &prepared.steps {
            let _ = write!(text, "\n  {}", plain(step));
        }
        self.print(&text)
    }
}
