//! How a term under a lock ended, and what its holder is called.

use std::ffi::OsString;
use std::fmt;

use rustix::process::Signal;

use crate::exit;

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Over {
    /// With which code to exit.
    pub(crate) code: u8,
    /// Whether the lock was lost, and with it the command.
    pub(crate) lost: bool,
    /// The signal that asked for the end of all of it, while the command ran or was being ended.
    pub(super) told_to_end: Option<Signal>,
    /// The signal that latchwork itself is to die of, and whether its whole group is hit by it.
    pub(super) dies_of: Option<(Signal, bool)>,
}

impl Over {
    pub(super) fn by_itself(code: u8) -> Self {
        Self { code, lost: false, told_to_end: None, dies_of: None }
    }

    pub(super) fn by_signal(signal: Signal) -> Self {
        let code = exit::code_of_signal(signal.as_raw());
        Self { dies_of: Some((signal, false)), ..Self::by_itself(code) }
    }

    /// The end of all terms, if a signal asked for it: another term could follow, but nobody wants one.
    pub(crate) fn told_to_end(self) -> Option<Self> {
        self.told_to_end.map(Self::by_signal)
    }
}

/// Names of locks, for people.
pub(super) struct Names<'a>(pub(super) &'a [String]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.0.iter().enumerate() {
            write!(f, "{}{name:?}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// Who this is, for people: user, host, process and command.
pub(crate) fn default_holder(command: &[OsString]) -> String {
    const LONGEST: usize = 120;
    let user =
        std::env::var("USER").unwrap_or_else(|_| rustix::process::getuid().as_raw().to_string());
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let mut words = words.join(" ");
    if let Some((end, _)) = words.char_indices().nth(LONGEST) {
        words.truncate(end);
        words.push_str("...");
    }
    let host = latchwork::store::system::this_host();
    format!("{user}@{host} {}: {words}", latchwork::store::this_process())
}
