//! Looks through a store for what should be gone.

use std::time::Duration;

use latchwork::LockManager;
use latchwork_store::clock::boot_time;
use latchwork_store::{Moment, Snapshot};

use crate::event::What;
use crate::log::Log;
use crate::pause::pause;

/// How long a key may be closed whose task was done: a period and a little.
pub(crate) const CLOSED: Duration = Duration::from_millis(2_500);

/// Looks again and again from now on, until `earliest` and then until all in the namespace of
/// `locks` is free, but no longer than `limit`: some stores end the claims of a dead process only
/// some time after their ttl, and on Kubernetes that time begins at a client's first look at a
/// write, which may land late.
pub(crate) async fn until_free(locks: &LockManager, earliest: Moment, limit: Moment) {
    loop {
        let found = locks.list("").await;
        let is_free = found.is_ok_and(|found| found.iter().all(Snapshot::is_free));
        let now = boot_time();
        if now >= limit || now >= earliest && is_free {
            return;
        }
        pause(Duration::from_millis(100));
    }
}

/// Lists everything in the namespace of `locks` and notes down each claim and linger that is left.
///
/// # Errors
///
/// What the store says.
pub(crate) async fn sweep(locks: &LockManager, log: &Log) -> Result<(), latchwork::Error> {
    let found = locks.list("").await?;
    for entry in found.iter().filter(|entry| !entry.is_free()) {
        let name = || entry.key.as_str().into();
        let parts = [
            (entry.holders.len(), "holder"),
            (entry.waiters.len(), "waiter"),
            (usize::from(entry.linger.is_some()), "linger"),
        ];
        for (_, what) in parts.into_iter().filter(|(left, _)| *left > 0) {
            log.note(None, What::Ghost { name: name(), what: what.into() });
        }
    }
    log.note(None, What::Inspected { entries: found.len() as u64 });
    Ok(())
}
