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

/// The name of this user by the password database, else the number: cron and containers set no USER.
fn user() -> String {
    let number = rustix::process::getuid().as_raw();
    let all = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    name_of(number, &all).map_or_else(|| number.to_string(), str::to_owned)
}

/// The name of a user in the text of `/etc/passwd`.
fn name_of(number: u32, all: &str) -> Option<&str> {
    all.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(number) && !name.is_empty()).then_some(name)
    })
}

/// Who this is, for people: user, host, process and command.
pub(crate) fn default_holder(command: &[OsString]) -> String {
    const LONGEST: usize = 120;
    let user = std::env::var("USER").ok().filter(|name| !name.is_empty()).unwrap_or_else(user);
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let mut words = words.join(" ");
    if let Some((end, _)) = words.char_indices().nth(LONGEST) {
        words.truncate(end);
        words.push_str("...");
    }
    let host = latchwork_wire::system::this_host();
    format!("{user}@{host} {}: {words}", latchwork_wire::this_process())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_the_name_of_the_password_database() {
        let all =
            "root:x:0:0:root:/root:/bin/sh\nbad:x\n:x:1:1::/:\nann:x:1000:100::/home/ann:/bin/sh\n";
        assert_eq!(name_of(0, all), Some("root"));
        assert_eq!(name_of(1000, all), Some("ann"));
        for unknown in [1, 100, 7] {
            assert_eq!(name_of(unknown, all), None);
        }
    }
}
