//! Renewals: a keep-alive, and a look whether the key is still there, in one flight.
//!
//! A keep-alive alone proves nothing: etcd answers it while the keys of the lease are being
//! deleted, and the key may have been deleted by hand.

use latchwork_core::kit::lineup::Admission;
use latchwork_core::{BackendError, Claim, Effect, Renewal};

use crate::backend::Shared;
use crate::errors::{Failure, unsupported};
use crate::keep_alive::Lane;
use crate::members::error;
use crate::{names, requests};

impl Shared {
    pub(crate) async fn renew(&self, claim: &Claim) -> Result<Renewal, BackendError> {
        let prefix = names::line(&claim.key);
        if let Some(own) = self.claims.get(claim.id)
            && own.granted
            && let Some(revision) = own.revision
        {
            let key = names::claim(&prefix, own.lease.id);
            return self.keep(claim, &key, revision, own.lease.id).await;
        }
        // Not granted to this client, as far as it knows: the store knows better.
        let answer = self.members.ask(|link| {
            let request = requests::line(&prefix);
            async move { link.range(request).await }
        });
        let line = requests::line_in(answer.await.map_err(error)?);
        let Some(place) = line.find_claim(claim.id) else { return Ok(Renewal::Lost) };
        let me = line.find(&place.key);
        if me.is_none_or(|me| line.admission(me) != Admission::Granted) {
            return Ok(Renewal::Lost);
        }
        self.keep(claim, &place.key, place.revision, place.lease).await
    }

    async fn keep(
        &self,
        claim: &Claim,
        key: &[u8],
        revision: i64,
        lease: i64,
    ) -> Result<Renewal, BackendError> {
        let token = revision as u64;
        if claim.floor > token {
            return Err(unsupported("etcd cannot lift its revision to a floor"));
        }
        let sent_at = self.io.now();
        let (found, alive) = self
            .members
            .ask(|link| {
                let request = requests::one(key);
                async move {
                    let alive = link.keep_alive(Lane::Renew, lease);
                    // Whatever became of a keep-alive, another one does no harm.
                    tokio::try_join!(link.range(request), alive).map_err(Failure::of_a_read)
                }
            })
            .await
            // It may have been kept alive all the same.
            .map_err(|failure| BackendError { effect: Effect::Unknown, ..error(failure) })?;
        let is_there = found.kvs.first().is_some_and(|entry| entry.create_revision == revision);
        match alive {
            Some(ttl) if is_there => {
                self.claims.alive(claim.id, lease, ttl, sent_at);
                Ok(Renewal::Held { ttl, token, store_time: None })
            }
            _ => Ok(Renewal::Lost),
        }
    }
}
