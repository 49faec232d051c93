//! Clients of other kinds in the same contest: what they are, and what they do not promise.
//!
//! Such a client is one process among the workers. It takes the exclusive keys, writes to the
//! resource with the number that the store gave its claim, and writes the same history. It is killed
//! and stopped as the others are, and its connections fail as theirs do. Each is one description in
//! [`ALL`] and a small worker in its own language. A client that has no number has the token 0 in
//! the history and writes nothing to the resource, so no fence can judge it: see `docs/testing.md`.

mod program;

use std::time::Duration;

use crate::bounds::{Allowed, ForeignBounds};
pub(crate) use program::Ready;
use program::{Package, Program};

/// Longer than any run: a session lasts as long as its process asks for it.
const A_SESSION: Duration = Duration::from_secs(86_400);

/// A client of another kind.
#[derive(Debug, Clone, Copy)]
pub struct Foreign {
    /// How its processes are called in the history, with a number behind.
    pub(crate) name: &'static str,
    /// The schemes of the addresses at which it plays.
    stores: &'static [&'static str],
    program: Program,
    /// The faults under which it may believe in a hold that has ended.
    overstays: &'static [&'static str],
    /// The faults under which it may take a key whose holder still believes in its hold.
    enters: &'static [&'static str],
    /// The faults after which it may leave claims in the queue that it does not know of, for as long as its
    /// session lasts.
    leaves: &'static [&'static str],
    /// How much later than after a worker a waiter notices that one of its processes is gone.
    noticed: Duration,
}

/// It counts until its validity ends by its own clock, so it never believes for too long.
const NEVER: &[&str] = &[];

/// Faults of Redis after which a master has forgotten claims. With the guard, Latchwork grants
/// nothing until those have ended. Other clients know nothing of the guard.
const LOSSES: &[&str] =
    &["lose-data", "old-data", "flush-all", "failover", "hang", "split", "node-loss", "node-hang"];

/// A claim of Redis that ends without a word is noticed by the head of the queue, which polls.
const POLLED: Duration = Duration::from_millis(250);

/// kazoo's `Lock` with the names of nodes that `docs/zookeeper.md` gives it: it stands in the queue
/// of Latchwork's mutexes.
const KAZOO: Foreign = Foreign {
    name: "kazoo",
    stores: &["zk"],
    program: Program::Python {
        source: concat!(
            include_str!("foreign/python/worker.py"),
            include_str!("foreign/python/kazoo_lock.py")
        ),
        package: Package::OfSystem("kazoo"),
    },
    // It counts on its hold while its session's connection is fine, and has no end of its validity
    // by its own clock.
    overstays: &[
        // It goes on before it hears that its session is over.
        "stop",
        // A server that is alone answers its pings, and the leader ends its session.
        "member-stop",
        "leader-stop",
        "silence",
        // It does not look at its node again.
        "delete",
    ],
    enters: &[],
    // If an attempt ends with an error, it asks once for the deletion of its node.
    leaves: &[
        "cuts",
        "lost-answers",
        "partition",
        "strand",
        "member-kill",
        "member-stop",
        "leader-kill",
        "leader-stop",
        "all-kill",
        "silence",
    ],
    noticed: Duration::ZERO,
};

/// Curator's `InterProcessMutex`.
const CURATOR: Foreign = Foreign {
    name: "curator",
    stores: &["zk"],
    program: Program::Java { class: "Curator" },
    // It counts on its hold until its listener hears SUSPENDED or LOST: for the same reasons.
    overstays: &["stop", "member-stop", "leader-stop", "silence", "delete"],
    enters: &[],
    leaves: NEVER,
    noticed: Duration::ZERO,
};

/// The `Mutex` of etcd's Go package `concurrency`.
const GO_CONCURRENCY: Foreign = Foreign {
    name: "go-concurrency",
    stores: &["etcd"],
    program: Program::Go,
    // It counts on its session until its `Done` fires. That is a ttl after the last answer to a
    // keep-alive, and up to half a second more; the member counts from the question.
    overstays: &[
        // It goes on before it looks at the time.
        "stop",
        // Whatever keeps answers from it, for as long as the lease lasts without a question.
        "cuts",
        "lost-answers",
        "partition",
        "strand",
        "member-stop",
        "leader-stop",
        "silence",
        // It does not look at its key again.
        "delete",
    ],
    enters: &[],
    leaves: NEVER,
    noticed: Duration::ZERO,
};

/// redis-py's `Lock`, with a timeout.
const REDIS_PY: Foreign = Foreign {
    name: "redis-py",
    stores: &["redis", "redis+sentinel"],
    program: Program::Python {
        source: concat!(
            include_str!("foreign/python/worker.py"),
            include_str!("foreign/python/redis_lock.py")
        ),
        package: Package::OfSystem("redis"),
    },
    overstays: NEVER,
    enters: LOSSES,
    leaves: NEVER,
    noticed: POLLED,
};

/// redsync's `Mutex`, at one server and at several that vote.
const REDSYNC: Foreign = Foreign {
    name: "redsync",
    stores: &["redis", "redis+sentinel", "redis+cluster", "redlock"],
    program: Program::Go,
    overstays: NEVER,
    enters: LOSSES,
    leaves: NEVER,
    noticed: POLLED,
};

/// Latchwork's own package for Python: it promises what the library promises.
const PYTHON: Foreign = Foreign {
    name: "python",
    stores: &[
        "file",
        "redis",
        "redis+sentinel",
        "redis+cluster",
        "redlock",
        "etcd",
        "zk",
        "postgres",
        "k8s",
    ],
    program: Program::Python {
        source: concat!(
            include_str!("foreign/python/worker.py"),
            include_str!("foreign/python/latchwork_lock.py")
        ),
        package: Package::Built,
    },
    overstays: NEVER,
    enters: NEVER,
    leaves: NEVER,
    noticed: Duration::ZERO,
};

/// All that there are.
pub const ALL: &[Foreign] = &[KAZOO, CURATOR, GO_CONCURRENCY, REDIS_PY, REDSYNC, PYTHON];

impl Foreign {
    /// How many tasks a process of it has.
    pub(crate) const TASKS: u32 = 3;

    /// The client of this name, at the store with this address.
    ///
    /// # Errors
    ///
    /// That there is no such client, or that it does not lock at such a store.
    pub fn named(name: &str, store: &str) -> Result<Self, String> {
        let Some(foreign) = ALL.iter().find(|foreign| foreign.name == name) else {
            let known: Vec<_> = ALL.iter().map(|foreign| foreign.name).collect();
            return Err(format!("{name:?} is unknown; {} are", known.join(", ")));
        };
        let scheme = store.split(':').next().unwrap_or_default();
        if !foreign.stores.contains(&scheme) {
            return Err(format!("{name} plays at {}, not at {scheme}", foreign.stores.join(", ")));
        }
        Ok(*foreign)
    }

    /// How its processes are called in the history, with a number behind.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The faults under which it may believe in a hold that has ended.
    pub fn overstays(&self) -> &'static [&'static str] {
        self.overstays
    }

    /// The faults under which it may take a key whose holder still believes in its hold.
    pub fn enters(&self) -> &'static [&'static str] {
        self.enters
    }

    /// The faults after which it may leave claims in the queue.
    pub fn leaves(&self) -> &'static [&'static str] {
        self.leaves
    }

    /// How much later than after a worker a waiter notices that one of its processes is gone.
    pub(crate) fn noticed(&self) -> Duration {
        self.noticed
    }

    /// What may happen to its processes.
    pub(crate) fn bounds(&self, ttl: Duration) -> ForeignBounds {
        // It learns of the end of its hold at the latest when that would have ended by itself.
        let after = ttl * 2;
        let allowed = |rules: &[&'static str], faults: &[&str], after| -> Vec<Allowed> {
            let each = faults.iter().flat_map(|fault| rules.iter().map(move |rule| (rule, fault)));
            each.map(|(rule, fault)| Allowed { rule, fault: (*fault).into(), after }).collect()
        };
        let overstays = ["exclusion", "forgotten-claim", "told", "kept"];
        ForeignBounds {
            name: self.name,
            overstays: allowed(&overstays, self.overstays, after),
            enters: allowed(&["exclusion", "forgotten-claim"], self.enters, after),
            leaves: allowed(&["handed-on"], self.leaves, A_SESSION),
        }
    }

    /// Builds it, if there is something to build, in a folder beside this program.
    ///
    /// # Errors
    ///
    /// What it needs and this machine does not have.
    pub(crate) fn ready(self, beside: &std::path::Path) -> std::io::Result<Ready> {
        self.program.ready(self, beside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_list_each_exception_of_a_client() {
        let page = include_str!("../../../docs/testing.md");
        for foreign in ALL {
            let begins = format!("| `{}`", foreign.name);
            let row = page.lines().find(|line| line.starts_with(&begins)).unwrap();
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            for (cell, faults) in [
                (cells[3], foreign.overstays),
                (cells[4], foreign.enters),
                (cells[5], foreign.leaves),
            ] {
                let named: Vec<_> = faults.iter().map(|fault| format!("`{fault}`")).collect();
                let said = if named.is_empty() { "nothing".into() } else { named.join(", ") };
                assert_eq!(cell, said, "{}", foreign.name);
            }
        }
    }

    #[test]
    fn a_client_plays_at_its_own_stores_alone() {
        for (name, store, is_known) in [
            ("kazoo", "zk://a,b", true),
            ("kazoo", "redis://a", false),
            ("redsync", "redlock://a,b,c?max_ttl=1s", true),
            ("redis-py", "redlock://a,b,c", false),
            ("redisson", "redis://a", false),
        ] {
            assert_eq!(Foreign::named(name, store).is_ok(), is_known, "{name} at {store}");
        }
    }
}
