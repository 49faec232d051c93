//! This client's claims: the session of each, and its node.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use latchwork_store::{Blocked, Claim, ClaimId, Key, Moment};

use crate::server::ancestors::Ancestors;
use crate::server::session::{Departed, Room, Session};

/// A claim that has, or may have, a place in the store.
#[derive(Debug, Clone)]
pub(crate) struct OwnClaim {
    pub(crate) session: Arc<Session>,
    /// Its node, once an answer told it. Without one, a node may have been made or may yet be.
    pub(crate) node: Option<Node>,
    /// Whether its node was found to match those ahead. It keeps its limit from then on.
    pub(crate) matches: bool,
    /// Whether an answer said that it holds the key.
    pub(crate) granted: bool,
    /// It is being released, because the engine has not asked for it within its ttl.
    pub(crate) ends: bool,
    /// Its node on its way, while that was not answered.
    pub(crate) entry: Option<Arc<Entry>>,
    /// Of permits: the version of the limit when its node was made.
    pub(crate) limit_version: Option<i32>,
    /// What it has seen of the queue, if it stands far behind. Boxed: it is large, and most claims have none.
    pub(crate) far: Option<Box<LastAnswer>>,
    /// When the engine asked for it last.
    asked_at: Moment,
    ttl: Duration,
    /// As it was asked for: to release it, if nobody asks again.
    claim: Arc<Claim>,
    /// Its path in the session.
    _room: Arc<Room>,
}

/// A node of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    /// Below the lock.
    pub(crate) name: Arc<str>,
    /// The transaction that made it: the token.
    pub(crate) created: i64,
}

/// The requests that make a node and read the queue, on their way. A try that is given up leaves them
/// to the next one: where answers are late, nothing is asked twice.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Until it has landed, with the nodes above that are made before.
    pub(crate) departed: tokio::sync::Mutex<Option<(Departed, Ancestors)>>,
}

/// What a claim far behind in the queue has seen of it. As long as the nodes that it waits for are watched
/// and there, the rest of the queue does not matter to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LastAnswer {
    /// The path of the first in queue.
    pub(crate) first: Arc<str>,
    /// The paths of the nodes that it waits for.
    pub(crate) behind: Vec<String>,
    /// The answer that it got then.
    pub(crate) blocked: Blocked,
    /// Of permits: the version of the limit.
    pub(crate) limit_version: Option<i32>,
}

#[derive(Debug)]
pub(crate) struct Claims {
    all: Mutex<HashMap<ClaimId, OwnClaim>>,
    /// When the janitor looks next, in nanoseconds. Changed only while `all` is locked.
    looks_at: AtomicU64,
}

impl Default for Claims {
    fn default() -> Self {
        let looks_at = AtomicU64::new(Moment::NEVER.as_nanos());
        Self { all: Mutex::default(), looks_at }
    }
}

impl Claims {
    /// What is known of a claim, if its session lives. A node of a session that has ended is never
    /// taken for the claim's own again.
    pub(crate) fn get(&self, id: ClaimId) -> Option<OwnClaim> {
        let mut claims = self.lock();
        let own = claims.get(&id)?;
        if own.session.is_over() {
            claims.remove(&id);
            return None;
        }
        Some(own.clone())
    }

    /// A node for this claim may come to be from now on. Tells whether the janitor would look too late.
    pub(crate) fn begin(&self, claim: &Claim, room: &Arc<Room>, now: Moment) -> bool {
        let own = OwnClaim {
            session: room.session().clone(),
            node: None,
            matches: false,
            granted: false,
            ends: false,
            entry: None,
            limit_version: None,
            far: None,
            asked_at: now,
            ttl: claim.ttl,
            claim: Arc::new(claim.clone()),
            _room: room.clone(),
        };
        let end = now.plus(claim.ttl).as_nanos();
        let mut claims = self.lock();
        claims.insert(claim.id, own);
        self.looks_at.fetch_min(end, Ordering::Relaxed) > end
    }

    /// The engine has asked for this claim.
    pub(crate) fn asked(&self, id: ClaimId, now: Moment) {
        self.change(id, |own| own.asked_at = own.asked_at.max(now));
    }

    pub(crate) fn change(&self, id: ClaimId, change: impl FnOnce(&mut OwnClaim)) {
        if let Some(own) = self.lock().get_mut(&id) {
            change(own);
        }
    }

    /// Marks that the claim holds its key; false if it is being released.
    pub(crate) fn grant(&self, id: ClaimId) -> bool {
        self.lock().get_mut(&id).filter(|own| !own.ends).is_some_and(|own| {
            own.granted = true;
            true
        })
    }

    /// The key that is held by a node of this transaction, and the node's name.
    pub(crate) fn node_created_at(&self, created: i64) -> Option<(Key, Arc<str>)> {
        let claims = self.lock();
        let mut held = claims.values().filter(|own| own.granted && !own.session.is_over());
        held.find_map(|own| {
            let node = own.node.as_ref().filter(|node| node.created == created)?;
            Some((own.claim.key.clone(), node.name.clone()))
        })
    }

    pub(crate) fn forget(&self, id: ClaimId) {
        self.lock().remove(&id);
    }

    /// The claims that the engine has not asked for within their ttl, and when the next one will be so: the
    /// janitor looks then. From now on they are neither renewed nor granted.
    pub(crate) fn silent(&self, now: Moment) -> (Vec<Arc<Claim>>, Moment) {
        let mut next = Moment::NEVER;
        let mut silent = Vec::new();
        let mut claims = self.lock();
        claims.retain(|_, own| {
            let end = own.asked_at.plus(own.ttl);
            if end > now {
                next = next.min(end);
            } else if own.session.is_over() {
                return false;
            } else {
                own.ends = true;
                silent.push(own.claim.clone());
            }
            true
        });
        self.looks_at.store(next.as_nanos(), Ordering::Relaxed);
        (silent, next)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ClaimId, OwnClaim>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
