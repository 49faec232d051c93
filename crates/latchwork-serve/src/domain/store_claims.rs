//! The claims of this service at the store, whichever instance made them.
//!
//! A list of the store is read by one request at a time, for all that wait for it.

use std::sync::Arc;
use std::time::Duration;

use latchwork::{FencingToken, LockManager, Unwatched};
use latchwork_store::{ClaimId, Clock, Holder, Key, Mode, Moment, Party};

use super::holds::origin::Origin;
use super::refusal::Refusal;

/// A claim that holds a lock, with its origin.
#[derive(Debug, Clone)]
pub(crate) struct StoreClaim {
    pub(crate) key: Key,
    pub(crate) id: ClaimId,
    pub(crate) mode: Mode,
    pub(crate) token: FencingToken,
    pub(crate) holder: Holder,
    pub(crate) origin: Origin,
    pub(crate) age: Option<Duration>,
    pub(crate) remaining: Option<Duration>,
}

impl StoreClaim {
    /// `None` for a claim of another program.
    pub(crate) fn of(key: &Key, party: &Party) -> Option<Self> {
        Some(Self {
            key: key.clone(),
            id: party.id?,
            mode: party.mode,
            token: FencingToken::from_grant(party.token?),
            origin: Origin::read(&party.holder)?,
            holder: party.holder.clone(),
            age: party.age,
            remaining: party.remaining,
        })
    }

    /// The hold of it, with a lease of this length.
    pub(crate) fn hold(&self, lease: Duration) -> Unwatched {
        let (key, holder) = (self.key.clone(), self.holder.clone());
        Unwatched::new(key, self.id, self.mode, self.token, lease, holder)
    }
}

/// All claims of the service at one time.
type List = Arc<[StoreClaim]>;

/// Reads the claims of the service.
#[derive(Debug)]
pub(crate) struct StoreClaims {
    locks: LockManager,
    clock: Arc<dyn Clock>,
    /// The newest list, and when its request went to the store.
    newest: tokio::sync::Mutex<(Moment, std::sync::Weak<[StoreClaim]>)>,
}

impl StoreClaims {
    pub(crate) fn new(locks: LockManager, clock: Arc<dyn Clock>) -> Self {
        let none: List = Arc::default();
        let newest = tokio::sync::Mutex::new((Moment::from_nanos(0), Arc::downgrade(&none)));
        Self { locks, clock, newest }
    }

    /// The claims at a time after `since`. Requests that wait for the same list share one; nothing of it is kept.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub(crate) async fn after(&self, since: Moment) -> Result<List, Refusal> {
        let mut newest = self.newest.lock().await;
        if let (read_at, Some(list)) = (newest.0, newest.1.upgrade())
            && read_at >= since
        {
            return Ok(list);
        }
        let read_at = self.clock.now();
        let seen = self.locks.list("").await.map_err(|error| Refusal::of(&error, None))?;
        let of = |it: &latchwork_store::Snapshot| -> Vec<_> {
            it.holders.iter().filter_map(|party| StoreClaim::of(&it.key, party)).collect()
        };
        let list: List = seen.iter().flat_map(of).collect();
        *newest = (read_at, Arc::downgrade(&list));
        Ok(list)
    }
}
