//! What the store holds, for people.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use latchwork_core::kit::lineup::Admission;
use latchwork_core::{BackendError, Key, Party, Query, Snapshot};

use crate::backend::Shared;
use crate::line::{Line, Place};
use crate::members::error;
use crate::proto::{KeyValue, RangeRequest, RangeResponse};
use crate::{names, requests};

impl Shared {
    pub(crate) async fn look(&self, query: &Query) -> Result<Vec<Snapshot>, BackendError> {
        let mut lines: BTreeMap<Key, Vec<KeyValue>> = BTreeMap::new();
        let found = match query {
            Query::Key(key) => {
                let found = self.read(requests::line(&names::line(key))).await?;
                lines.insert(key.clone(), found.kvs);
                return self.show(lines).await;
            }
            Query::Prefix(prefix) => self.read(requests::all(&names::escape(prefix))).await?,
        };
        for entry in found.kvs {
            // What does not look like a claim is data of somebody. A place that keeps a key closed
            // has another lease than the claim that it was.
            let closed = Place::read(entry.clone()).closed.is_some();
            let lease = if closed { names::lease_in(&entry.key) } else { Some(entry.lease) };
            if let Some(key) = lease.and_then(|lease| names::lock_of(&entry.key, lease)) {
                lines.entry(key).or_default().push(entry);
            }
        }
        self.show(lines).await
    }

    async fn read(&self, request: RangeRequest) -> Result<RangeResponse, BackendError> {
        let request = &request;
        let ask = self.members.ask(|link| async move { link.range(request.clone()).await });
        ask.await.map_err(error)
    }

    async fn show(
        &self,
        lines: BTreeMap<Key, Vec<KeyValue>>,
    ) -> Result<Vec<Snapshot>, BackendError> {
        let shown = lines.into_iter().map(|(key, entries)| {
            let line = Line::new(entries, 0);
            Box::pin(self.snapshot(key, line))
        });
        join_all(shown).await.into_iter().collect()
    }

    async fn snapshot(&self, key: Key, line: Line) -> Result<Snapshot, BackendError> {
        let left = line.places.iter().map(|place| Box::pin(self.left(place)));
        let left = join_all(left).await;
        let now = self.io.clock().wall();
        let name = names::escape(key.as_str());
        let mut snapshot = Snapshot::free(key);
        if name != snapshot.key.as_str().as_bytes() {
            let name = String::from_utf8_lossy(&name);
            snapshot.notes.push(format!("its name for etcdctl is {name:?}"));
        }
        let open = line.places.iter().find(|place| place.closed.is_none());
        snapshot.shape = open.map(|place| place.mode.shape());
        for (me, (place, left)) in line.places.iter().zip(left).enumerate() {
            if place.closed.is_some() {
                snapshot.linger = snapshot.linger.max(left?);
                continue;
            }
            let holds = line.admission(me) == Admission::Granted;
            let token = holds.then_some(place.revision as u64);
            snapshot.token = snapshot.token.max(token.unwrap_or(0));
            let party = Party {
                id: place.id,
                mode: place.mode,
                holder: place.holder.clone(),
                token,
                remaining: left?,
                age: place.since.map(|since| now.saturating_sub(since)),
            };
            if place.lease == 0 {
                let name = String::from_utf8_lossy(&place.key);
                snapshot.notes.push(format!(
                    "{name:?} has no lease: if its owner has died, only deleting it frees the key"
                ));
            }
            let parties = if holds { &mut snapshot.holders } else { &mut snapshot.waiters };
            parties.push(party);
        }
        Ok(snapshot)
    }

    /// What is left of a lease; `None` if it does not end by itself.
    async fn left(&self, place: &Place) -> Result<Option<Duration>, BackendError> {
        let lease = place.lease;
        if lease == 0 {
            return Ok(None);
        }
        let ask = self.members.ask(|link| async move { link.time_to_live(lease).await });
        let left = ask.await.map_err(error)?.ttl;
        Ok(Some(Duration::from_secs(left.try_into().unwrap_or(0))))
    }
}
