//! Takes locks away from their holders, as `latchwork release --force` does.

use std::sync::Arc;

use latchwork::store::clock::boot_time;
use latchwork::{ErrorKind, LockManager};

use crate::event::What;
use crate::log::Log;
use crate::luck::Luck;

/// Evicts the holders of one key, if any is held, and notes down which claims they had. A store that
/// does not answer keeps its holders, and so do clients of another kind.
///
/// # Errors
///
/// What the store says.
pub(crate) async fn evict(
    locks: &LockManager,
    prefix: &str,
    log: &Log,
    luck: &mut Luck,
) -> Result<(), latchwork::Error> {
    use ErrorKind::{TimedOut, Unreachable, Unsupported};
    let held = match locks.list("").await {
        Err(error) if error.kind() == Unreachable => return Ok(()),
        held => held?,
    };
    let held: Vec<_> = held.into_iter().filter(|seen| !seen.holders.is_empty()).collect();
    let Some(seen) = held.get(luck.below(held.len())) else { return Ok(()) };
    let name = seen.key.as_str();
    let name = name.strip_prefix(prefix).unwrap_or(name);
    let asked = boot_time();
    let released = match locks.force_release(name).await {
        Err(error) if matches!(error.kind(), Unreachable | TimedOut | Unsupported) => return Ok(()),
        released => released?,
    };
    let key: Arc<str> = name.into();
    for grant in released.evicted.iter().filter_map(|party| party.token) {
        log.note(None, What::Evicted { key: key.clone(), grant, asked });
    }
    Ok(())
}
