//! The claims of this service at the store, whichever instance made them.
//!
//! A list of the store is read by one request at a time, for all that wait for it.

use std::sync::Arc;
use std::time::Duration;

use latchwork::{FencingToken, LockManager, Unwatched};
use latchwork_store::{ClaimId, Clock, Holder, Key, Mode, Moment, Party};

use super::holds::origin::Origin;
use super::refusal::Refusal;
use crate::time::{pause, spawn};

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

/// How long a list is kept for requests that wait for it.
const KEPT: Duration = Duration::from_secs(1);

/// The newest list, and when its request went to the store.
type Newest = Arc<tokio::sync::Mutex<Option<(Moment, List)>>>;

/// Reads the claims of the service.
#[derive(Debug)]
pub(crate) struct StoreClaims {
    locks: LockManager,
    clock: Arc<dyn Clock>,
    newest: Newest,
}

impl StoreClaims {
    pub(crate) fn new(locks: LockManager, clock: Arc<dyn Clock>) -> Self {
        Self { locks, clock, newest: Newest::default() }
    }

    /// The claims at a time after `since`. Requests that wait for the same list share one.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub(crate) async fn after(&self, since: Moment) -> Result<List, Refusal> {
        let mut newest = self.newest.lock().await;
        if let Some((_, list)) = newest.as_ref().filter(|(read_at, _)| *read_at >= since) {
            return Ok(list.clone());
        }
        let read_at = self.clock.now();
        let seen = self.locks.list("").await.map_err(|error| Refusal::of(&error, None))?;
        let of = |it: &latchwork_store::Snapshot| -> Vec<_> {
            it.holders.iter().filter_map(|party| StoreClaim::of(&it.key, party)).collect()
        };
        let list: List = seen.iter().flat_map(of).collect();
        *newest = Some((read_at, list.clone()));
        drop(newest);
        let newest = self.newest.clone();
        spawn(async move {
            pause(KEPT).await;
            let mut newest = newest.lock().await;
            if newest.as_ref().is_some_and(|(newest, _)| *newest == read_at) {
                *newest = None;
            }
        });
        Ok(list)
    }
}
