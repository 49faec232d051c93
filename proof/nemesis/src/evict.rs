//! Takes locks away from their holders, as `latchwork release --force` does.

use std::sync::Arc;

use latchwork::{ErrorKind, FencingToken, LockManager};
use latchwork_store::clock::boot_time;

use crate::event::What;
use crate::log::Log;
use crate::luck::Luck;
use crate::service::Service;

/// Evicts the holders of one key, if any is held, and notes down which claims they had: at the store, or through the
/// service that holds it for its clients. Of a store that does not answer, all holders count as evicted. Clients of another
/// kind keep their holds.
///
/// # Errors
///
/// What the store says.
pub(crate) async fn evict(
    locks: &LockManager,
    prefix: &str,
    service: Option<&Service>,
    log: &Log,
    luck: &mut Luck,
) -> Result<(), latchwork::Error> {
    use ErrorKind::{Mismatch, TimedOut, Unreachable, Unsupported};
    let held = match locks.list("").await {
        Err(error) if error.kind() == Unreachable => return Ok(()),
        held => held?,
    };
    let held: Vec<_> = held.into_iter().filter(|seen| !seen.holders.is_empty()).collect();
    // The key with the most waiters every other time: somebody gets it in that moment.
    let place = match luck.percent(50) {
        true => (0..held.len()).max_by_key(|place| held[*place].waiters.len()),
        false => Some(luck.below(held.len())),
    };
    let Some(seen) = place.and_then(|place| held.get(place)) else { return Ok(()) };
    let name = seen.key.as_str();
    let name = name.strip_prefix(prefix).unwrap_or(name);
    let asked = boot_time();
    let key: Arc<str> = name.into();
    let evicted = |grant| {
        log.note(None, What::Evicted { key: key.clone(), grant, asked });
    };
    if let Some(service) = service.filter(|_| luck.percent(70)) {
        match service.force_release(name) {
            Ok(tokens) => tokens.into_iter().map(FencingToken::grant_number).for_each(evicted),
            // Nobody knows what it has done.
            Err(_) => seen.holders.iter().filter_map(|party| party.token).for_each(evicted),
        }
        return Ok(());
    }
    let released = match locks.force_release(name).await {
        Err(error) if error.kind() == Unsupported => return Ok(()),
        // Without an answer nobody knows what the store has done. If a client of another kind holds the key, ours beside it
        // have lost their holds.
        Err(error) if matches!(error.kind(), Unreachable | TimedOut | Mismatch) => {
            let ours = seen.holders.iter().filter(|party| party.id.is_some());
            ours.filter_map(|party| party.token).for_each(evicted);
            return Ok(());
        }
        released => released?,
    };
    released.evicted.iter().filter_map(|party| party.token).for_each(evicted);
    Ok(())
}
