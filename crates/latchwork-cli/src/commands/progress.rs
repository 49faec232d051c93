//! What a person sees while a command waits: one line, brought up to date on a terminal.

use latchwork_store::Moment;
use latchwork_store::clock::boot_time;

use crate::news::{Heard, InTheWay};
use crate::output::{Output, coarse};

/// The line about waiting.
#[derive(Debug)]
pub(super) struct Progress<'a> {
    output: &'a Output,
    since: Moment,
    last: Option<InTheWay>,
    shown: bool,
}

impl<'a> Progress<'a> {
    pub(super) fn new(output: &'a Output) -> Self {
        Self { output, since: boot_time(), last: None, shown: false }
    }

    /// Shows what was reported.
    pub(super) fn heard(&mut self, heard: Heard, key: &str) {
        match heard {
            Heard::Waiting(what, is_news) => {
                let refreshes = self.output.refreshes_lines();
                if is_news && (!refreshes || what.is_done()) {
                    self.clear();
                    let holder = what.holder().map(|holder| ("holder", holder));
                    let fields: Vec<_> = [("key", key)].into_iter().chain(holder).collect();
                    self.output.note("waiting", &what.sentence(""), &fields);
                }
                if refreshes {
                    self.last = Some(what);
                    self.refresh();
                }
            }
            Heard::TryFailed(message) => {
                self.clear();
                self.output.note("waiting", &message, &[("key", key)]);
            }
            Heard::RenewFailed(_) | Heard::RenewedAgain => {}
        }
    }

    /// Whether there is a line that grows old.
    pub(super) fn is_shown(&self) -> bool {
        self.shown
    }

    /// Writes the line again, with the time that has passed.
    pub(super) fn refresh(&mut self) {
        let Some(what) = &self.last else { return };
        let waited = boot_time().since(self.since);
        let waited = match waited.as_secs() {
            0 => String::new(),
            _ => format!(" for {}", coarse(waited)),
        };
        self.output.refresh_line(&what.line(&waited));
        self.shown = true;
    }

    /// Takes the line away.
    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            self.output.clear_line();
        }
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}
