//! What this client knows of its claims: the lease of each, and its create revision.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use latchwork_core::{ClaimId, Moment};
use tokio::sync::oneshot;

use crate::pool::Lease;

/// A claim that has, or may have, a place in the store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Own {
    pub(crate) lease: Lease,
    /// The length that was asked for.
    pub(crate) seconds: i64,
    /// The create revision of its key, once an answer told it.
    pub(crate) revision: Option<i64>,
    /// Whether an answer said that it holds the key.
    pub(crate) granted: bool,
    /// How many requests that may change its key have no answer yet, or never got one. Such a
    /// request may still come, so the lease must be revoked: a put under it fails from then on.
    pub(crate) unsure: u32,
}

#[derive(Debug)]
struct Entry {
    own: Own,
    /// Since when it has held the key, and what its key is called.
    held: Option<(Moment, Vec<u8>)>,
    /// Ends its watch when it is dropped.
    watch: Option<oneshot::Sender<()>>,
}

/// A claim that has held its key for a while and is not watched yet.
#[derive(Debug)]
pub(crate) struct Unwatched {
    pub(crate) id: ClaimId,
    pub(crate) key: Vec<u8>,
    pub(crate) revision: i64,
    /// Ends with the claim.
    pub(crate) over: oneshot::Receiver<()>,
}

#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<HashMap<ClaimId, Entry>>);

impl Claims {
    pub(crate) fn get(&self, id: ClaimId) -> Option<Own> {
        self.lock().get(&id).map(|entry| entry.own)
    }

    /// A request is sent that may change the key of this claim.
    pub(crate) fn begin(&self, id: ClaimId, lease: Lease, seconds: i64) {
        let fresh = || Entry {
            own: Own { lease, seconds, revision: None, granted: false, unsure: 0 },
            held: None,
            watch: None,
        };
        self.lock().entry(id).or_insert_with(fresh).own.unsure += 1;
    }

    /// A request was answered: it did this, or certainly nothing.
    pub(crate) fn answered(&self, id: ClaimId, lease: i64, change: impl FnOnce(&mut Own)) {
        self.change(id, lease, |entry| {
            entry.own.unsure = entry.own.unsure.saturating_sub(1);
            change(&mut entry.own);
        });
    }

    /// The lease of this claim had its whole ttl at this moment.
    pub(crate) fn alive(&self, id: ClaimId, lease: i64, ttl: Duration, at: Moment) {
        self.change(id, lease, |Entry { own, .. }| {
            own.lease.ttl = ttl;
            own.lease.alive_at = own.lease.alive_at.max(at);
        });
    }

    /// The claim with this lease holds its key, which is called so, since now at the latest.
    pub(crate) fn granted(&self, id: ClaimId, lease: i64, key: Vec<u8>, now: Moment) {
        self.change(id, lease, |entry| {
            entry.own.granted = true;
            entry.held.get_or_insert((now, key));
        });
    }

    /// Forgets a claim that has this lease.
    pub(crate) fn forget(&self, id: ClaimId, lease: i64) -> Option<Own> {
        let mut claims = self.lock();
        match claims.get(&id) {
            Some(entry) if entry.own.lease.id == lease => claims.remove(&id).map(|e| e.own),
            _ => None,
        }
    }

    /// Those that have held their keys since before a moment and are not watched, which they are
    /// from now on; and whether there are younger ones.
    pub(crate) fn unwatched(&self, since: Moment) -> (Vec<Unwatched>, bool) {
        let (mut due, mut younger) = (Vec::new(), false);
        for (id, entry) in self.lock().iter_mut().filter(|(_, entry)| entry.watch.is_none()) {
            let (Some((at, key)), Some(revision)) = (&entry.held, entry.own.revision) else {
                continue;
            };
            if *at > since {
                younger = true;
                continue;
            }
            let (watch, over) = oneshot::channel();
            entry.watch = Some(watch);
            due.push(Unwatched { id: *id, key: key.clone(), revision, over });
        }
        (due, younger)
    }

    /// The key that was created at this revision, if a claim holds it.
    pub(crate) fn key_created_at(&self, revision: i64) -> Option<Vec<u8>> {
        let claims = self.lock();
        let mut held = claims.values().filter(|entry| entry.own.revision == Some(revision));
        held.find_map(|entry| entry.held.as_ref().map(|(_, key)| key.clone()))
    }

    /// Ends all watches.
    pub(crate) fn close(&self) {
        self.lock().clear();
    }

    fn change(&self, id: ClaimId, lease: i64, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.lock().get_mut(&id).filter(|e| e.own.lease.id == lease) {
            change(entry);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ClaimId, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
