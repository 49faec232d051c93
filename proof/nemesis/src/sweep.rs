//! Looks through a store for what should be gone.

use latchwork::LockManager;

use crate::event::What;
use crate::log::Log;

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
