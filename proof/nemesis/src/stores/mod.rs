//! The stores that a run starts and breaks, each by one description: [`Store`].
//!
//! A store says which servers it starts, which faults it can have, and which rules its documents
//! excuse under each of them. Everything else is the same for all: the workers, the schedule, the
//! judge. What two stores share, they take from `network` (the ways between workers and servers)
//! and `members` (servers that vote).

mod etcd;
mod kubernetes;
mod members;
mod network;
mod postgres;
mod zookeeper;

use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use latchwork_services::Process;

use crate::bounds::Allowed;
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
pub(crate) const TWO_HOLDERS: &[&str] =
    &["exclusion", "forgotten-claim", "done-once", LOSS_REASON, RELEASE];
/// The same where the store also goes back to an older state of a claim that it still has.
pub(crate) const OLDER_STATE: &[&str] =
    &["exclusion", "forgotten-claim", "done-once", LOSS_REASON, RELEASE, "kept"];
/// What is left of that where nothing is granted until lost claims have ended.
pub(crate) const GUARDED: &[&str] = &["done-once", LOSS_REASON, RELEASE, "kept"];
/// The rules that find a claim which the store has lost by itself.
const LOSS_REASON: &str = "loss-reason";
const RELEASE: &str = "release";
/// Both.
pub(crate) const LOSSES: [&str; 2] = [LOSS_REASON, RELEASE];

/// What a server has printed, or written for itself.
#[derive(Debug, Clone)]
pub struct ServerLog {
    name: String,
    bytes: Vec<u8>,
}

impl ServerLog {
    /// What a server has printed.
    pub(crate) fn of(name: impl Into<String>, server: &Process) -> Self {
        Self::of_file(format!("{}.txt", name.into()), server.log_file())
    }

    /// A file of a server.
    pub(crate) fn of_file(name: String, file: &Path) -> Self {
        let none = |e: io::Error| format!("{}: {e}", file.display()).into_bytes();
        Self { name, bytes: fs::read(file).unwrap_or_else(none) }
    }
}

/// Servers of a store for one run. They end with this value and the plans that it has armed.
pub trait Store {
    /// The address, as [`latchwork::connect`] takes it, for the run itself: no fault of the network
    /// touches it.
    fn url(&self) -> String;

    /// The addresses of the workers on each side of the network. None if they use that of the run.
    fn sides(&self) -> Vec<String>;

    /// The names of all its faults, beside those of the workers.
    fn faults(&self) -> Vec<&'static str>;

    /// The rules that the documents of Latchwork excuse under this fault, and for a ttl after it.
    fn excused(&self, fault: &str) -> &'static [&'static str];

    /// The fault of this name.
    fn nemesis(&self, fault: &str, ttl: Duration) -> Option<Box<dyn Nemesis>>;

    /// What looks for leftovers that `inspect` cannot see, if there is something.
    fn lister(&self) -> Option<Box<dyn Lister>> {
        None
    }

    /// What its servers have printed until now.
    fn logs(&self) -> Vec<ServerLog>;

    /// Writes what its servers have printed into the folder `servers` beside a history.
    ///
    /// # Errors
    ///
    /// What the file system says.
    fn keep_logs(&self, folder: &Path) -> io::Result<()> {
        let folder = folder.join("servers");
        fs::create_dir_all(&folder)?;
        let mut logs = self.logs().into_iter();
        logs.try_for_each(|log| fs::write(folder.join(log.name), log.bytes))
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
            for rule in self.excused(name) {
                // The holder learns at its next renewal that its claim is gone.
                let after = if LOSSES.contains(rule) { plan.ttl * 2 } else { plan.ttl };
                plan.bounds.allowed.push(Allowed { rule, fault: (*name).into(), after });
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
    let mut all: Vec<&'static str> = [&["kill", "stop", "evict"][..], &store.faults()].concat();
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
    use super::network::Reached;
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

    fn check<R: Reached>(store: &str) {
        let page = include_str!("../../../../docs/testing.md");
        for fault in network::faults_of::<R>() {
            let two = |options| R::excused_with(fault, options).contains(&"exclusion");
            let expected = match (two("guard=true&max_ttl=1s"), two("")) {
                (true, _) => "yes",
                (false, true) => "yes, not with the guard",
                (false, false) => "no",
            };
            let said = documented(page, store, fault);
            assert!(said.starts_with(expected), "{fault} of {store}: {said}");
            assert_eq!(said.contains("not with"), expected.contains("not with"), "{fault}");
        }
    }

    #[test]
    fn the_documents_say_what_each_fault_may_do() {
        check::<Etcd>("etcd");
        check::<ZooKeeper>("zookeeper");
        check::<Postgres>("postgres");
        check::<Pooled>("pgbouncer");
        check::<Kubernetes>("kubernetes");
    }
}
