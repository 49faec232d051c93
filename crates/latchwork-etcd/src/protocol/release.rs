//! The release: by create revision if everything is known, otherwise by revoking the lease.

use std::sync::Arc;
use std::time::Duration;

use latchwork_store::kit::lineup::Admission;
use latchwork_store::{BackendError, Claim, Key, Released};

use crate::protocol::claims::OwnClaim;
use crate::protocol::queue::{Place, Queue, closed_value};
use crate::protocol::shared::{Shared, whole_seconds};
use crate::protocol::{names, requests};
use crate::server::errors::{Reaction, error};

impl Shared {
    pub(crate) async fn release_claim(
        self: &Arc<Self>,
        claim: &Claim,
    ) -> Result<Released, BackendError> {
        let prefix = names::queue(&claim.key);
        self.claims.let_go(claim.id);
        match self.claims.get(claim.id) {
            Some(OwnClaim { unsure, is_adopted, revision: Some(revision), lease, .. })
                if unsure == 0 || is_adopted =>
            {
                let key = names::claim(&prefix, lease.id);
                self.release_known(claim, &prefix, &key, revision.get()).await
            }
            Some(own) => self.revoke(claim, own.lease.id).await,
            None => self.release_of_another(claim, &prefix).await,
        }
    }

    /// Ends a claim and keeps the key closed, if the claim held it: its place stays, under a new
    /// lease. A request of this kind may be sent again, for it changes only that place.
    pub(crate) async fn close(
        self: &Arc<Self>,
        claim: &Claim,
        length: Duration,
    ) -> Result<Released, BackendError> {
        let prefix = names::queue(&claim.key);
        self.claims.let_go(claim.id);
        let known = self.claims.get(claim.id);
        let (key, revision, old) = match known {
            Some(OwnClaim { granted: true, revision: Some(revision), lease, .. }) => {
                (names::claim(&prefix, lease.id), revision.get(), lease.id)
            }
            Some(_) => return self.release_claim(claim).await,
            None => {
                let queue = self.queue(&prefix).await?;
                let is_it = |place: &Place| place.id == Some(claim.id) && place.closed.is_none();
                let Some(me) = queue.places.iter().position(is_it) else {
                    return Ok(Released::NotHeld);
                };
                if queue.admission(me) != Admission::Granted {
                    return self.release_claim(claim).await;
                }
                let place = &queue.places[me];
                (place.key.clone(), place.revision, place.lease)
            }
        };
        // Granted now, so that it lasts its measure from now.
        let seconds = whole_seconds(length);
        let granted = self.members.ask(|link| async move { link.grant(seconds).await }).await;
        let granted = granted.map_err(error)?;
        let (lease, term) = (granted.id, granted.header.map_or(0, |header| header.raft_term));
        if let Some(own) = known {
            self.claims.begin(claim.id, own.lease, own.seconds);
        }
        let value = closed_value(claim, self.io.clock().wall() + length, term);
        let closing = self.members.ask(|link| {
            let request = requests::close(&key, revision, &value, lease);
            async move { link.txn(request).await }
        });
        let closed = closing.await.map_err(error)?.succeeded;
        self.claims.forget(claim.id, old);
        if !closed {
            return Ok(Released::NotHeld);
        }
        // Its name is taken by the place that stays. If this fails it ends by itself.
        let _ = self.members.ask(|link| async move { link.revoke(old).await }).await;
        Ok(Released::Yes)
    }

    /// Opens a key that nobody holds: deletes the places that keep it closed, each only if it is
    /// still the one that was read. However late a request comes, it opens nothing that was closed after it.
    pub(crate) async fn open(&self, key: &Key) -> Result<Released, BackendError> {
        let queue = self.queue(&names::queue(key)).await?;
        if queue.is_held() {
            return Ok(Released::NotHeld);
        }
        let mut released = Released::NotHeld;
        for place in queue.places.iter().filter(|place| place.closed.is_some()) {
            let answer = self.members.ask(|link| {
                let request = requests::delete(&place.key, place.put_at(), None);
                async move { link.txn(request).await }
            });
            if answer.await.map_err(error)?.succeeded {
                released = Released::Yes;
                // Nothing else is under it, and it could last for years.
                let lease = place.lease;
                let _ = self.members.ask(|link| async move { link.revoke(lease).await }).await;
            }
        }
        Ok(released)
    }

    /// The queue as a majority has it; of permits with their limit.
    pub(crate) async fn queue(&self, prefix: &[u8]) -> Result<Queue, BackendError> {
        let answer = self.members.ask(|link| {
            let request = requests::queue(prefix);
            async move { link.range(request).await }
        });
        let queue = requests::queue_in(answer.await.map_err(error)?);
        match queue.places.iter().any(|place| place.mode.limit().is_some()) {
            true => self.queue_and_limit(prefix).await,
            false => Ok(queue),
        }
    }

    /// One transaction; the lease is used again.
    async fn release_known(
        self: &Arc<Self>,
        claim: &Claim,
        prefix: &[u8],
        key: &[u8],
        revision: i64,
    ) -> Result<Released, BackendError> {
        let Some(own) = self.claims.get(claim.id) else { return Ok(Released::NotHeld) };
        let limit = claim.mode.limit().map(|_| names::limit(prefix));
        // However late it comes, a delete that compares the revision ends nothing else, not even what a success has
        // left in its place. But a try of this claim may be sent while it is under way.
        self.claims.begin(claim.id, own.lease, own.seconds);
        let answer = self
            .members
            .ask(|link| {
                let request = requests::delete(key, revision, limit.as_deref());
                async move { link.txn(request).await }
            })
            .await
            .map_err(error)?;
        self.claims.answered(claim.id, own.lease.id, |_| {});
        let forgotten = self.claims.forget(claim.id, own.lease.id);
        if !answer.succeeded {
            // Somebody else has deleted it, or its lease has ended.
            return Ok(Released::NotHeld);
        }
        if let Some(own) = forgotten {
            self.give_back(own);
        }
        if limit.is_some() && requests::limit_in(answer).is_some() {
            self.tidy_limit(prefix).await;
        }
        Ok(Released::Yes)
    }

    /// Ends a lease, and with it whatever a request has done or will do under it.
    pub(crate) async fn revoke(&self, claim: &Claim, lease: i64) -> Result<Released, BackendError> {
        let revoked = self.members.ask(|link| async move { link.revoke(lease).await }).await;
        let released = match revoked {
            Ok(()) => Released::Yes,
            Err(failure) if failure.reaction == Reaction::LeaseGone => Released::NotHeld,
            Err(failure) => return Err(error(failure)),
        };
        self.claims.forget(claim.id, lease);
        Ok(released)
    }

    /// A claim that this client did not make: who knows its id may end it.
    async fn release_of_another(
        &self,
        claim: &Claim,
        prefix: &[u8],
    ) -> Result<Released, BackendError> {
        let queue = self.queue(prefix).await?;
        let Some(place) = queue.find_claim(claim.id) else { return Ok(Released::NotHeld) };
        let answer = self.members.ask(|link| {
            let request = requests::delete(&place.key, place.put_at(), None);
            async move { link.txn(request).await }
        });
        let succeeded = answer.await.map_err(error)?.succeeded;
        if succeeded && queue.limit.is_some() {
            self.tidy_limit(prefix).await;
        }
        Ok(if succeeded { Released::Yes } else { Released::NotHeld })
    }
}
