//! The stores that a run starts and breaks, each by one description: [`Store`].
//!
//! A store says which servers it starts, which faults it can have, and which checks its documents
//! excuse under each of them. Everything else is the same for all: the workers, the schedule, the
//! checks. What two stores share, they take from `network` (the ways between workers and servers)
//! and `members` (servers that vote).

mod etcd;
mod kubernetes;
mod members;
mod network;
mod postgres;
mod zookeeper;

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::checks::Allowed;
use crate::faults::{ClientFault, Lister, Nemesis};
use crate::luck::Luck;
use crate::redis;
use crate::run::Plan;
pub use etcd::Etcd;
pub use kubernetes::Kubernetes;
pub use postgres::{Pooled, Postgres};
pub use zookeeper::ZooKeeper;

/// What a store violates that loses claims: there are two holders at once, or holds that the forgotten
/// one is handed over to meanwhile, or it has lost that a task is done.
pub(crate) const TWO_HOLDERS: &[&str] = &["exclusion", "forgotten_claim", "done_once"];
/// The same where the store also goes back to an older state of a claim that it still has.
pub(crate) const OLDER_STATE: &[&str] =
    &["exclusion", "forgotten_claim", "done_once", "store_keeps"];
/// What is left of that where nothing is granted until lost claims have ended.
pub(crate) const GUARDED: &[&str] = &["done_once", "store_keeps"];

/// Servers of a store for one run. They end with this value and the plans that it has armed.
pub trait Store {
    /// The address, as [`latchwork::connect`] takes it, for the run itself: no fault of the network
    /// touches it.
    fn url(&self) -> String;

    /// The addresses of the workers on each side of the network. None if they use that of the run.
    fn sides(&self) -> Vec<String>;

    /// The names of all its faults, beside those of the workers.
    fn faults(&self) -> &'static [&'static str];

    /// The checks that the documents of Latchwork excuse under this fault, and for a ttl after it.
    fn excused(&self, fault: &str) -> &'static [&'static str];

    /// The fault of this name.
    fn nemesis(&self, fault: &str, ttl: Duration) -> Option<Box<dyn Nemesis>>;

    /// What looks for leftovers that `inspect` cannot see, if there is something.
    fn lister(&self) -> Option<Box<dyn Lister>> {
        None
    }

    /// Adds faults to a plan, by their names (those of workers, too), what may happen under them,
    /// the sides of the network, and the look for leftovers.
    ///
    /// # Errors
    ///
    /// A name that is no fault of these servers.
    fn arm(&self, plan: &mut Plan, faults: &[&str]) -> Result<(), String> {
        for name in faults {
            if let Ok(fault) = name.parse::<ClientFault>() {
                plan.faults.push(fault);
                continue;
            }
            let nemesis = self.nemesis(name, plan.ttl).ok_or_else(|| {
                let known = self.faults().join(", ");
                format!("{name:?} is no fault of these servers; {known} are")
            })?;
            plan.nemeses.push(nemesis);
            for check in self.excused(name) {
                let (check, fault) = ((*check).into(), (*name).into());
                plan.bounds.allowed.push(Allowed { check, fault, after: plan.ttl });
            }
        }
        plan.sides = self.sides();
        plan.lister = self.lister();
        Ok(())
    }
}

/// The stores that [`start`] knows.
pub const KINDS: [&str; 5] = ["etcd", "zookeeper", "postgres", "pgbouncer", "kubernetes"];

/// Starts the servers of a store, to be used with these options of a Latchwork address.
///
/// # Errors
///
/// What kept them from starting, or that there is no store of this name.
pub fn start(kind: &str, options: &str) -> io::Result<Box<dyn Store>> {
    Ok(match kind {
        "etcd" => Box::new(Etcd::start(options)?),
        "zookeeper" => Box::new(ZooKeeper::start(options)?),
        "postgres" => Box::new(Postgres::start(options)?),
        "pgbouncer" => Box::new(Pooled::start(options)?),
        "kubernetes" => Box::new(Kubernetes::start(options)?),
        _ => {
            let kind = kind.parse().map_err(|e: String| {
                io::Error::new(io::ErrorKind::InvalidInput, format!("{e}, and {KINDS:?}"))
            })?;
            Box::new(redis::Servers::start(kind, options)?)
        }
    })
}

/// Draws so many faults of a store and of the workers, by a seed: none twice.
pub fn draw(store: &dyn Store, seed: u64, count: usize) -> Vec<&'static str> {
    let mut luck = Luck::of(seed, 1 << 32);
    let mut all: Vec<&'static str> = [&["kill", "stop", "evict"][..], store.faults()].concat();
    let count = count.min(all.len());
    (0..count).map(|_| all.swap_remove(luck.below(all.len()))).collect()
}

pub(crate) fn the<T: ?Sized>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn with_options(url: &str, options: &str) -> String {
    let mark = if options.is_empty() { "" } else { "?" };
    format!("{url}{mark}{options}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The row of a fault in the table of `docs/testing.md`: whether two may hold at once.
    fn documented<'a>(page: &'a str, store: &str, fault: &str) -> &'a str {
        let rows = page.lines().filter(|line| line.starts_with("| "));
        let mut cells = rows.map(|row| row.trim_matches('|').split('|').collect::<Vec<_>>());
        let found = cells.find(|row| {
            let servers = row[0].trim();
            let named = servers == "all" || servers.split(", ").any(|name| name == store);
            named && row[1].contains(&format!("`{fault}`"))
        });
        found.unwrap_or_else(|| panic!("{fault} of {store} is in no row"))[3].trim()
    }

    #[test]
    fn the_documents_say_what_each_fault_may_do() {
        let page = include_str!("../../../../docs/testing.md");
        let two = |excused: &[&str]| excused.contains(&"exclusion");
        for (store, faults) in [
            ("etcd", members::FAULTS),
            ("zookeeper", members::FAULTS),
            ("postgres", postgres::FAULTS),
            ("pgbouncer", postgres::POOLED_FAULTS),
            ("kubernetes", kubernetes::FAULTS),
        ] {
            for fault in faults {
                let guarded = two(postgres::excused(fault, "guard=true&max_ttl=1s"));
                let expected = match store {
                    "etcd" if two(etcd::excused(fault)) => "yes",
                    "zookeeper" if two(zookeeper::excused(fault)) => "yes",
                    "kubernetes" if two(kubernetes::excused(fault)) => "yes",
                    "etcd" | "zookeeper" | "kubernetes" => "no",
                    _ if guarded => "yes",
                    _ if two(postgres::excused(fault, "")) => "yes, not with the guard",
                    _ => "no",
                };
                let said = documented(page, store, fault);
                assert!(said.starts_with(expected), "{fault} of {store}: {said}");
                assert_eq!(said.contains("not with"), expected.contains("not with"), "{fault}");
            }
        }
    }
}
