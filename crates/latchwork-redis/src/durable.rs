//! Locks that count only when replicas have them (`min_replicas`).
//!
//! A grant or renewal that too few replicas confirm in time does not count: the grant is taken
//! back before the error is told, and the renewal leaves the validity where it was. A grant that a
//! releaser has pushed is confirmed by a renewal before it counts. A release needs no replica: one
//! that a fail-over forgets ends by its ttl.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use latchwork_store::{
    Attempt, BackendError, BackendErrorKind, Claim, ClaimId, Effect, Grant, Linger, Released,
    Renewal, Stamp, Wake,
};
use redis::Value;

use crate::backend::Shared;
use crate::confirm::{Answer, Confirm};
use crate::errors::Failure;
use crate::locked::lock;
use crate::names::Names;
use crate::topology::Sending;

/// How long replicas may take at most.
const LIMIT: Duration = Duration::from_millis(500);

/// How many replicas have what a try did.
#[derive(Debug)]
pub(crate) struct Kept(Result<u32, BackendError>);

impl Kept {
    /// Notes what the replicas said, and passes on what the master said.
    pub(crate) fn note(&mut self, answer: Result<Answer, Failure>) -> Result<Value, BackendError> {
        let Answer { value, replicas } = answer.map_err(|failure| failure.error)?;
        self.0 = replicas;
        Ok(value)
    }
}

/// Claims that were taken back without an answer. A release of theirs may still be under way, and
/// a new grant to one of them would be hit by it.
#[derive(Debug, Default)]
pub(crate) struct Undone(Mutex<HashSet<ClaimId>>);

impl Undone {
    fn lock(&self) -> MutexGuard<'_, HashSet<ClaimId>> {
        lock(&self.0)
    }
}

impl Shared {
    /// How tries and renewals are sent.
    pub(crate) fn sending(&self, ttl: Duration) -> Sending {
        let confirm = (self.config.min_replicas > 0)
            .then(|| Confirm { replicas: self.config.min_replicas, limit: limit(ttl) });
        Sending { confirm, ..Sending::default() }
    }

    /// Whether enough replicas have what was done.
    pub(crate) fn is_kept(&self, answer: &Answer) -> Result<(), BackendError> {
        self.enough(&answer.replicas)
    }

    fn enough(&self, replicas: &Result<u32, BackendError>) -> Result<(), BackendError> {
        let wanted = self.config.min_replicas;
        match replicas {
            Ok(confirmed) if *confirmed >= wanted => Ok(()),
            Ok(confirmed) => Err(BackendError::new(
                BackendErrorKind::Unreachable,
                Effect::Unknown,
                format!("{confirmed} of {wanted} replicas confirmed the lock in time"),
            )
            .next_step("look at the replicas (INFO replication), or lower min_replicas")),
            Err(error) => Err(BackendError { effect: Effect::Unknown, ..error.clone() }),
        }
    }

    pub(crate) async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, BackendError> {
        if self.is_plain() {
            return Box::pin(self.try_plain(claim)).await;
        }
        if self.config.min_replicas == 0 {
            return self.try_on_master(claim, &mut Kept(Ok(0))).await;
        }
        Box::pin(self.try_with_replicas(claim)).await
    }

    async fn try_with_replicas(&self, claim: &Claim) -> Result<Attempt, BackendError> {
        let mut kept = Kept(Ok(0));
        if self.undone.lock().contains(&claim.id) {
            self.take_back(claim).await?;
        }
        let attempt = self.try_on_master(claim, &mut kept).await?;
        if matches!(attempt, Attempt::Granted(_))
            && let Err(short) = self.enough(&kept.0)
        {
            let effect = match self.take_back(claim).await {
                Ok(()) => Effect::NotApplied,
                Err(_) => Effect::Unknown,
            };
            return Err(BackendError { effect, ..short });
        }
        Ok(attempt)
    }

    /// Takes back a grant that does not count. Until that is answered, whatever becomes of this
    /// future, the claim is not tried again.
    async fn take_back(&self, claim: &Claim) -> Result<(), BackendError> {
        self.undone.lock().insert(claim.id);
        let limit = limit(claim.ttl);
        let released = self.io.within(limit, self.release(claim, Linger::None)).await;
        released.unwrap_or_else(|| Err(BackendError::no_answer(limit))).map(drop)
    }

    pub(crate) async fn release(
        &self,
        claim: &Claim,
        linger: Linger,
    ) -> Result<Released, BackendError> {
        if self.is_plain() {
            return Box::pin(self.release_plain(claim, linger)).await;
        }
        if self.config.min_replicas == 0 {
            return self.release_on_master(claim, linger).await;
        }
        Box::pin(self.release_with_replicas(claim, linger)).await
    }

    async fn release_with_replicas(
        &self,
        claim: &Claim,
        linger: Linger,
    ) -> Result<Released, BackendError> {
        let slot = self.topology.names(&claim.key)?.slot();
        self.topology.link(slot).await?.end_abandoned().await;
        let released = self.release_on_master(claim, linger).await?;
        if linger != Linger::End {
            self.undone.lock().remove(&claim.id);
        }
        Ok(released)
    }

    /// Confirms a grant that a releaser has pushed. If that fails the claim tries by itself, and
    /// then it is told why or taken back.
    pub(crate) async fn confirm_push(
        &self,
        claim: &Claim,
        names: &Arc<Names>,
    ) -> Result<Wake, BackendError> {
        let stamp = Stamp::new(self.io.now());
        Ok(match self.renew_one(claim, names).await {
            Ok(Renewal::Held { ttl, token, store_time }) => Wake::Admitted {
                grant: Grant { token, ttl, store_time },
                stamp,
                since_try: Duration::ZERO,
            },
            Ok(Renewal::Lost) | Err(_) => Wake::Look,
        })
    }
}

/// How long replicas may take for a claim of this ttl: a part of what core allows the verb.
fn limit(ttl: Duration) -> Duration {
    (ttl / 10).clamp(Duration::from_millis(1), LIMIT)
}
