//! Reads the state of the store for people.

use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use latchwork_store::{BackendError, BackendErrorKind, Key, Party, Query, Snapshot};

use crate::names::key_of;
use crate::protocol::answers::{ANY, pulse_in, queue_in, queue_of, reads};
use crate::protocol::lingers::closed_by;
use crate::protocol::queue::{Queue, Told};
use crate::protocol::shared::Shared;
use crate::server::errors::{refused, strange};
use crate::server::session::Session;
use crate::server::session::messages::{self, Refusal, Request, Stat};

/// As many requests go together.
const MOST: usize = 500;
/// And the requests of so many locks. One after the other, each would cost a round trip.
const AT_ONCE: usize = 64;

/// The holder that is shown for a lock of another user.
const UNREADABLE: &str = "not known: the lock cannot be read";

impl Shared {
    pub(crate) async fn look(&self, query: &Query) -> Result<Vec<Snapshot>, BackendError> {
        let session = self.sessions.any();
        let up = session.up().await?;
        // What is read after a write is no older than that.
        let pulse = Request::set(&up.pulse);
        let root = self.names.root();
        let mut landed = match query {
            Query::Key(_) => session.fly(vec![pulse]).await,
            Query::Prefix(_) => session.fly(vec![pulse, Request::children(root)]).await,
        };
        let now_ms = pulse_in(&mut landed, &up.pulse)?;
        let mut keys = match query {
            Query::Key(key) => vec![key.clone()],
            Query::Prefix(prefix) => {
                let body = match landed.next()? {
                    Ok(body) => Some(body),
                    Err(Refusal::NO_NODE) => None,
                    Err(refusal) => return Err(refused(refusal, root)),
                };
                let names = body.as_deref().map_or(Some(Vec::new()), messages::children);
                let names = names.ok_or_else(|| strange("a list"))?;
                let keys = names.into_iter().filter_map(key_of);
                keys.filter(|key| key.as_str().starts_with(&**prefix)).collect()
            }
        };
        keys.sort();
        let is_one = matches!(query, Query::Key(_));
        let mut shown = Vec::new();
        for keys in keys.chunks(MOST) {
            let locks: Vec<_> = keys.iter().map(|key| self.names.lock(key)).collect();
            let lists = locks.iter().map(|lock| Request::children(lock)).collect();
            let mut landed = session.fly(lists).await;
            let mut looks = Vec::new();
            for (key, lock) in keys.iter().zip(&locks) {
                let queue = match queue_in(&mut landed, lock, None) {
                    Err(error) if !is_one && error.kind == BackendErrorKind::Denied => Err(error),
                    queue => Ok(queue?),
                };
                // Below the chroot there may be nodes that are no locks.
                let is_lock =
                    |queue: &Queue| queue.strangers.is_empty() || !queue.places.is_empty();
                if is_one || queue.as_ref().map_or(true, is_lock) {
                    let look = self.look_at(&session, key, lock, queue, now_ms);
                    looks.push(Box::pin(async move { (key, look.await) }));
                }
            }
            let mut seen = stream::iter(looks).buffered(AT_ONCE);
            while let Some((key, snapshot)) = seen.next().await {
                let snapshot = match snapshot {
                    Err(error) if !is_one && error.kind == BackendErrorKind::Denied => {
                        Snapshot::unreadable(key.clone(), UNREADABLE, error)
                    }
                    snapshot => snapshot?,
                };
                if is_one || !snapshot.is_free() {
                    shown.push(snapshot);
                }
            }
        }
        Ok(shown)
    }

    async fn look_at(
        &self,
        session: &Session,
        key: &Key,
        lock: &str,
        queue: Result<Queue, BackendError>,
        now_ms: i64,
    ) -> Result<Snapshot, BackendError> {
        let queue = queue?;
        let queue = match queue.places.iter().any(|place| place.mode.limit().is_some()) {
            true => {
                let mut landed = session.fly(reads(lock, ANY)).await;
                queue_of(&mut landed, lock, ANY, None)?
            }
            false => queue,
        };
        self.snapshot(session, key, lock, &queue, now_ms).await
    }

    async fn snapshot(
        &self,
        session: &Session,
        key: &Key,
        lock: &str,
        queue: &Queue,
        now_ms: i64,
    ) -> Result<Snapshot, BackendError> {
        let mut snapshot = Snapshot::free(key.clone());
        snapshot.linger = queue
            .closed_until(now_ms)
            .map(|until| Duration::from_millis((until - now_ms).max(0) as u64));
        let name = lock.rsplit('/').next().unwrap_or_default();
        if name != key.as_str() {
            snapshot.notes.push(format!("its path in ZooKeeper is {lock:?}"));
        }
        for stranger in &queue.strangers {
            let note = format!("{stranger:?} below {lock:?} is not a node of Latchwork");
            snapshot.notes.push(format!("{note}: claims are refused while it exists"));
        }
        let closed = queue.closed_last(now_ms).map(|closed| &closed.name);
        let names: Vec<_> = queue.places.iter().map(|place| &place.name).chain(closed).collect();
        let mut told: Vec<Option<(Vec<u8>, Stat)>> = Vec::with_capacity(names.len());
        for names in names.chunks(MOST) {
            let path = |name: &str| format!("{lock}/{name}");
            let reads = names.iter().map(|name| Request::get(&path(name))).collect();
            let mut landed = session.fly(reads).await;
            for name in names {
                told.push(match landed.next()? {
                    Ok(body) => Some(messages::data(&body).ok_or_else(|| strange("a read"))?),
                    // It has left meanwhile.
                    Err(Refusal::NO_NODE) => None,
                    Err(refusal) => return Err(refused(refusal, &path(name))),
                });
            }
        }
        if closed.is_some() {
            snapshot.closed_by = told.pop().flatten().map(|(data, _)| closed_by(&data));
        }
        let now = self.io.clock().wall();
        let holding = queue.holding_at(now_ms).into_iter().zip(queue.holding());
        for ((place, (holds, is_first)), told) in queue.places.iter().zip(holding).zip(told) {
            let Some((data, stat)) = told else { continue };
            let told = Told::read(&data);
            // Other clients do not know of closed keys.
            let holds = holds || (is_first && !told.is_ours());
            snapshot.shape = snapshot.shape.or(Some(queue.mode_of(place).shape()));
            let token = holds.then_some(stat.created as u64);
            snapshot.token = snapshot.token.max(token.unwrap_or(0));
            if stat.owner == 0 {
                let note = format!("{:?} has no session", place.name);
                let end = "if its owner has died, only deleting the node frees the key";
                snapshot.notes.push(format!("{note}: {end}"));
            }
            // Curator's nodes carry an id too; they are not ours to evict.
            let id = place.id().filter(|_| told.is_ours());
            let party = Party::new(queue.mode_of(place), told.holder).with(|it| {
                it.id = id;
                it.token = token;
                // So long at most, if its process dies now.
                it.remaining = told.ttl.filter(|_| stat.owner != 0);
                it.age = told.since.map(|since| now.saturating_sub(since));
                it.beside = place.beside.filter(|_| !holds);
            });
            let parties = if holds { &mut snapshot.holders } else { &mut snapshot.waiters };
            parties.push(party);
        }
        Ok(snapshot)
    }
}
