//! What this client knows of its claims: the lease of each, and its create revision.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use latchwork_core::{ClaimId, Moment};

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

#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<HashMap<ClaimId, Own>>);

impl Claims {
    pub(crate) fn get(&self, id: ClaimId) -> Option<Own> {
        self.lock().get(&id).copied()
    }

    /// A request is sent that may change the key of this claim.
    pub(crate) fn begin(&self, id: ClaimId, lease: Lease, seconds: i64) {
        let fresh = || Own { lease, seconds, revision: None, granted: false, unsure: 0 };
        self.lock().entry(id).or_insert_with(fresh).unsure += 1;
    }

    /// A request was answered: it did this, or certainly nothing.
    pub(crate) fn answered(&self, id: ClaimId, lease: i64, change: impl FnOnce(&mut Own)) {
        if let Some(own) = self.lock().get_mut(&id).filter(|own| own.lease.id == lease) {
            own.unsure = own.unsure.saturating_sub(1);
            change(own);
        }
    }

    /// The lease of this claim had its whole ttl at this moment.
    pub(crate) fn alive(&self, id: ClaimId, lease: i64, ttl: Duration, at: Moment) {
        if let Some(own) = self.lock().get_mut(&id).filter(|own| own.lease.id == lease) {
            own.lease.ttl = ttl;
            own.lease.alive_at = own.lease.alive_at.max(at);
        }
    }

    /// An answer said that the claim with this lease holds its key.
    pub(crate) fn granted(&self, id: ClaimId, lease: i64) {
        if let Some(own) = self.lock().get_mut(&id).filter(|own| own.lease.id == lease) {
            own.granted = true;
        }
    }

    /// Forgets a claim that has this lease.
    pub(crate) fn forget(&self, id: ClaimId, lease: i64) -> Option<Own> {
        let mut claims = self.lock();
        match claims.get(&id) {
            Some(own) if own.lease.id == lease => claims.remove(&id),
            _ => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ClaimId, Own>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
