//! Reads locks from the store: one of them, or a list of all.
//!
//! One list is read at a time, for all requests that want it, and is kept for some time for clients that read it in
//! parts.

use std::sync::Arc;
use std::time::Duration;

use latchwork::LockManager;
use latchwork_store::{Clock, Moment, Snapshot};

use super::events::hub::Hub;
use super::holds::queue::Queue;
use super::lock_status::LockStatus;
use super::names::Names;
use super::refusal::Refusal;
use crate::time::{pause, spawn};

/// How long a list is kept.
const KEPT: Duration = Duration::from_secs(10);

/// All locks whose names begin with a prefix, at one time.
#[derive(Debug)]
pub(crate) struct LockList {
    prefix: String,
    /// The time of the request to the store.
    read_at: Moment,
    /// The number of the last event before.
    pub(crate) last_event: u64,
    /// The locks, sorted by their names.
    pub(crate) locks: Vec<LockStatus>,
}

/// The newest list.
type Newest = Arc<tokio::sync::Mutex<Option<Arc<LockList>>>>;

/// Reads locks from the store, and adds the waiters of this service.
#[derive(Debug)]
pub(crate) struct LockLists {
    locks: LockManager,
    names: Names,
    queue: Queue,
    hub: Arc<Hub>,
    clock: Arc<dyn Clock>,
    newest: Newest,
}

impl LockLists {
    pub(crate) fn new(
        locks: LockManager,
        names: Names,
        queue: Queue,
        hub: Arc<Hub>,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        Arc::new(Self { locks, names, queue, hub, clock, newest: Newest::default() })
    }

    /// Reads one lock.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub(crate) async fn one(&self, name: &str) -> Result<LockStatus, Refusal> {
        let seen = self.locks.inspect(name).await;
        let seen = seen.map_err(|error| Refusal::of(&error, Some(name)))?;
        Ok(self.status(name, &seen))
    }

    /// A list that was read after `since`. Requests that wait for the same list share one.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub(crate) async fn fresh(
        &self,
        prefix: &str,
        since: Moment,
    ) -> Result<Arc<LockList>, Refusal> {
        let mut newest = self.newest.lock().await;
        if let Some(list) = newest.as_ref().filter(|it| it.prefix == prefix && it.read_at >= since)
        {
            return Ok(list.clone());
        }
        let (read_at, last_event) = (self.clock.now(), self.hub.last());
        let locks = self.read_all(prefix).await?;
        let list = Arc::new(LockList { prefix: prefix.to_owned(), read_at, last_event, locks });
        *newest = Some(list.clone());
        drop(newest);
        let (newest, old) = (self.newest.clone(), Arc::downgrade(&list));
        spawn(async move {
            pause(KEPT).await;
            let mut newest = newest.lock().await;
            if newest.as_ref().is_some_and(|it| old.ptr_eq(&Arc::downgrade(it))) {
                *newest = None;
            }
        });
        Ok(list)
    }

    /// The list that a client goes on reading, or a new one if that is no longer kept.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub(crate) async fn kept(&self, prefix: &str) -> Result<Arc<LockList>, Refusal> {
        let since = self.clock.now().since(Moment::from_nanos(0)).saturating_sub(KEPT);
        let since = Moment::from_nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
        self.fresh(prefix, since).await
    }

    async fn read_all(&self, prefix: &str) -> Result<Vec<LockStatus>, Refusal> {
        let seen = self.locks.list(prefix).await.map_err(|error| Refusal::of(&error, None))?;
        let status = |seen: &Snapshot| self.status(&self.names.name_of(seen.key.as_str()), seen);
        Ok(seen.iter().map(status).collect())
    }

    fn status(&self, name: &str, seen: &Snapshot) -> LockStatus {
        let mut status = LockStatus::new(name, seen);
        self.queue.complete(&mut status, self.clock.now());
        status
    }
}
