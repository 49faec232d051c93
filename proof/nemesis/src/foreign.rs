//! Clients of other kinds in the same contest: what they are, and what they do not promise.
//!
//! Such a client is one process among the workers. It takes the exclusive keys, writes to the
//! resource with the number that the store gave its claim, and writes the same history. It is killed
//! and stopped as the others are.

use std::process::Command;
use std::time::Duration;

use crate::checks::Allowed;

const KAZOO: &str = include_str!("foreign/kazoo_worker.py");

/// A client of another kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Foreign {
    /// How its processes are called in the history, with a number behind.
    pub(crate) name: &'static str,
    /// The faults under which it may believe in a hold that has ended.
    excused: &'static [&'static str],
}

impl Foreign {
    /// How many tasks a process of it has.
    pub(crate) const TASKS: u32 = 3;

    /// kazoo's `Lock` with the names of nodes that `docs/zookeeper.md` gives it: it stands in the
    /// queue of Latchwork's mutexes.
    ///
    /// It counts on its hold while its session's connection is fine. It has no end of its validity by
    /// its own clock, so it believes for a moment too long when its process or its server stood
    /// still, or when its server was cut off from the leader.
    pub const KAZOO: Self = Self {
        name: "kazoo",
        excused: &[
            // It goes on before it hears that its session is over.
            "stop",
            // A server that is alone answers its pings, and the leader ends its session.
            "member-stop",
            "leader-stop",
            "silence",
            // It does not look at its node again.
            "delete",
        ],
    };

    /// The client of this name.
    pub fn named(name: &str) -> Option<Self> {
        (name == Self::KAZOO.name).then_some(Self::KAZOO)
    }

    /// What may happen to its processes.
    pub(crate) fn allowed(&self, ttl: Duration) -> Vec<Allowed> {
        let excused = self.excused.iter().flat_map(|fault| {
            ["exclusion", "forgotten_claim", "told_in_time"].map(|check| (check, *fault))
        });
        // It learns of the end of its session at the latest when that would have ended by itself.
        let allow = |(check, fault): (&str, &str)| Allowed {
            check: check.into(),
            fault: fault.into(),
            after: ttl * 2,
        };
        excused.map(allow).collect()
    }

    /// What starts it; the orders follow as flags.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-u", "-c", KAZOO, &Self::TASKS.to_string()]);
        command
    }
}
