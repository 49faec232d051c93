//! Reads the state of the store for people.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use latchwork_store::{BackendError, Blocked, Key, Party, Query, Snapshot};

use crate::proto::{KeyValue, LeaseTimeToLiveResponse, RangeRequest, RangeResponse};
use crate::protocol::queue::{Place, Queue};
use crate::protocol::shared::Shared;
use crate::protocol::{names, requests};
use crate::server::errors::error;

/// How many questions are open at a time, of a queue and of all queues.
const AT_ONCE: usize = 64;
/// The longest ttl that etcd grants, in seconds. A member that does not lead says a longer one of every lease.
const LONGEST_TTL: i64 = 9_000_000_000;

/// How long a claim lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    /// So long; `None` if it does not end by itself.
    For(Option<Duration>),
    /// It ended after the list was read.
    Nothing,
}

impl Shared {
    pub(crate) async fn look(&self, query: &Query) -> Result<Vec<Snapshot>, BackendError> {
        let prefix = match query {
            Query::Key(key) => {
                let queue = self.queue(&names::queue(key)).await?;
                return Ok(vec![self.snapshot(key.clone(), queue).await?]);
            }
            Query::Prefix(prefix) => names::escape(prefix),
        };
        let mut queues: BTreeMap<Key, Vec<Place>> = BTreeMap::new();
        // A key that is not named like a claim is data of somebody. The server returns the lease of a
        // key only with its value: since 3.7 not in a read of keys alone. A place that keeps a key
        // closed has another lease than the claim that it was.
        let named_after = |entry: &KeyValue| names::lease_in(&entry.key);
        let may_be = |entry: &KeyValue| {
            named_after(entry).and_then(|lease| names::lock_of(&entry.key, lease)).is_some()
        };
        let take = |entry: KeyValue| {
            let (named, lease) = (named_after(&entry)?, entry.lease);
            let key = names::lock_of(&entry.key, named)?;
            let place = Place::read(entry);
            (named == lease || place.closed.is_some()).then_some((key, place))
        };
        for (key, place) in self.read_all(&prefix, may_be, take).await?.into_iter().flatten() {
            queues.entry(key).or_default().push(place);
        }
        self.show(queues).await
    }

    async fn read(&self, request: RangeRequest) -> Result<RangeResponse, BackendError> {
        let request = &request;
        let ask = self.members.ask(|link| async move { link.range(request.clone()).await });
        ask.await.map_err(error)
    }

    async fn show(&self, queues: BTreeMap<Key, Vec<Place>>) -> Result<Vec<Snapshot>, BackendError> {
        let shown = queues.into_iter().map(|(key, places)| {
            Box::pin(async move {
                let queue = match places.iter().any(|place| place.mode.limit().is_some()) {
                    true => self.queue_and_limit(&names::queue(&key)).await?,
                    false => Queue::of(places, 0),
                };
                self.snapshot(key, queue).await
            })
        });
        stream::iter(shown).buffered(AT_ONCE).try_collect().await
    }

    async fn snapshot(&self, key: Key, queue: Queue) -> Result<Snapshot, BackendError> {
        let left: Vec<_> = queue.places.iter().map(|place| Box::pin(self.left(place))).collect();
        let left: Vec<_> = stream::iter(left).buffered(AT_ONCE).collect().await;
        let now = self.io.clock().wall();
        let name = names::escape(key.as_str());
        let mut snapshot = Snapshot::free(key);
        if name != snapshot.key.as_str().as_bytes() {
            let name = String::from_utf8_lossy(&name);
            snapshot.notes.push(format!("its name for etcdctl is {name:?}"));
        }
        snapshot.shape = queue.used_as(queue.places.len());
        let holding = queue.holding();
        for ((place, left), holds) in queue.places.iter().zip(left).zip(holding) {
            let Left::For(left) = left? else { continue };
            if place.closed.is_some() {
                if left > snapshot.linger {
                    snapshot.linger = left;
                    snapshot.closed_by = Some(place.holder.clone());
                }
                continue;
            }
            let token = holds.then_some(place.revision as u64);
            snapshot.token = snapshot.token.max(token.unwrap_or(0));
            let party = Party::new(queue.mode_of(place), place.holder.clone()).with(|it| {
                it.id = place.id;
                it.token = token;
                it.remaining = left;
                it.age = place.since.map(|since| now.saturating_sub(since));
                it.beside = place.beside.filter(|_| !holds);
            });
            if place.lease == 0 {
                let name = String::from_utf8_lossy(&place.key);
                snapshot.notes.push(format!(
                    "{name:?} has no lease: if its owner has died, only deleting the key frees \
                     it"
                ));
            }
            let parties = if holds { &mut snapshot.holders } else { &mut snapshot.waiters };
            parties.push(party);
        }
        Ok(snapshot)
    }

    /// Adds for how long the key stays closed, if it is, and by whom: by its lease, which is asked for.
    pub(crate) async fn until_it_opens(&self, queue: &Queue, mut blocked: Blocked) -> Blocked {
        for place in queue.closed_by() {
            let lease = place.lease;
            let ask = self.members.ask(|link| async move { link.time_to_live(lease).await });
            let left = ask.await.ok().map(|answer| left_in(&answer));
            let left = queue.closed_for(place, left, self.io.clock().wall());
            if left >= blocked.retry_after {
                blocked.retry_after = left;
                blocked.holder = Some(place.holder.clone());
            }
        }
        blocked
    }

    /// Asks for the remaining ttl of a claim. The list was read before, and the claim may have been
    /// released since.
    async fn left(&self, place: &Place) -> Result<Left, BackendError> {
        let lease = place.lease;
        if lease == 0 {
            return Ok(Left::For(None));
        }
        let ask = self.members.ask(|link| async move { link.time_to_live(lease).await });
        let answer = ask.await.map_err(error)?;
        if answer.ttl < 0 && self.read(requests::one(&place.key)).await?.kvs.is_empty() {
            return Ok(Left::Nothing);
        }
        Ok(Left::For(Some(left_in(&answer))))
    }
}

/// For how long etcd keeps a lease, in whole seconds, rounded down. While nobody leads, a lease does not run, and
/// the next leader begins its ttl again.
fn left_in(answer: &LeaseTimeToLiveResponse) -> Duration {
    let left = if answer.ttl > LONGEST_TTL { answer.granted_ttl } else { answer.ttl };
    Duration::from_secs(left.try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_does_not_run_is_shown_with_its_ttl() {
        let left = |ttl, granted_ttl| {
            left_in(&LeaseTimeToLiveResponse { ttl, granted_ttl, ..Default::default() })
        };
        assert_eq!(left(7, 9).as_secs(), 7);
        assert_eq!(left(12, 9).as_secs(), 12, "an election lengthens it");
        // As a member says it that no longer leads.
        assert_eq!(left(i64::MAX / 1_000_000_000, 9).as_secs(), 9);
        assert_eq!(left(-1, 0).as_secs(), 0);
    }
}
