//! `min_replicas`: the scripted verbs, whose grants and renewals count only when replicas have
//! them.
//!
//! A grant that too few replicas confirm in time is released before the error is returned, and such a
//! renewal does not extend the validity. A pushed grant counts only after replicas have confirmed a
//! renewal. A release needs no replica: one that a failover loses ends by its ttl.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use latchwork_store::{
    Attempt, BackendError, Claim, ClaimId, Effect, Grant, Linger, Released, Renewal, Stamp, Wake,
};

use crate::lock;
use crate::protocol::renew::Prepare;
use crate::protocol::scripted::Scripted;
use crate::server::confirm::Confirm;

/// How long replicas may take at most.
const LIMIT: Duration = Duration::from_millis(500);

/// The scripted verbs, confirmed by replicas.
pub(crate) struct Replicated {
    pub(crate) inner: Arc<Scripted>,
    replicas: u32,
    /// Claims whose release was not answered. The release may still be under way, and would end a new
    /// grant to the same claim.
    undone: Mutex<HashSet<ClaimId>>,
}

impl Replicated {
    pub(crate) fn new(inner: Arc<Scripted>, replicas: u32) -> Self {
        Self { inner, replicas, undone: Mutex::default() }
    }

    fn undone(&self) -> MutexGuard<'_, HashSet<ClaimId>> {
        lock(&self.undone)
    }

    fn confirm(&self, ttl: Duration) -> Confirm {
        Confirm { replicas: self.replicas, limit: limit(ttl) }
    }

    pub(crate) async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, BackendError> {
        if self.undone().contains(&claim.id) {
            self.take_back(claim).await?;
        }
        let names = self.inner.names(claim)?;
        let route = self.inner.store.topology.route(names.slot()).await?;
        let mut route = route.confirmed_by(self.confirm(claim.ttl));
        let attempt = self.inner.try_on(&mut route, &names, claim).await?;
        if matches!(attempt, Attempt::Granted(_))
            && let Err(short) = route.check_replicas()
        {
            let effect = match self.take_back(claim).await {
                Ok(()) => Effect::NotApplied,
                Err(_) => Effect::Unknown,
            };
            return Err(short.with_effect(effect));
        }
        Ok(attempt)
    }

    /// Releases a grant that does not count. Until that is answered the claim is not tried again, even if
    /// this future is dropped.
    async fn take_back(&self, claim: &Claim) -> Result<(), BackendError> {
        self.undone().insert(claim.id);
        let limit = limit(claim.ttl);
        let released = self.inner.store.io.within(limit, self.release(claim, Linger::None)).await;
        released.unwrap_or_else(|| Err(BackendError::no_answer(limit))).map(drop)
    }

    pub(crate) async fn release(
        &self,
        claim: &Claim,
        linger: Linger,
    ) -> Result<Released, BackendError> {
        let slot = self.inner.store.naming.of(&claim.key)?.slot();
        self.inner.store.topology.link(slot).await?.end_abandoned().await;
        let released = self.inner.release(claim, linger).await?;
        if linger != Linger::End {
            self.undone().remove(&claim.id);
        }
        Ok(released)
    }

    pub(crate) async fn renew_all(&self, claims: &[Claim]) -> Vec<Result<Renewal, BackendError>> {
        self.inner.renew_all(claims, &|route, ttl| route.confirmed_by(self.confirm(ttl))).await
    }

    /// Confirms a pushed grant. If that fails, the claim tries again, which reports the error or releases
    /// the grant.
    pub(crate) async fn wait(&self, claim: &Claim) -> Result<Wake, BackendError> {
        let wake = self.inner.wait(claim).await?;
        if !matches!(wake, Wake::Admitted { .. }) {
            return Ok(wake);
        }
        let names = self.inner.store.naming.of(&claim.key)?;
        let stamp = Stamp::new(self.inner.store.io.now());
        let prepare: Prepare<'_> = &|route, ttl| route.confirmed_by(self.confirm(ttl));
        Ok(match self.inner.renew_one(claim, &names, prepare).await {
            Ok(Renewal::Held { ttl, token, store_time, .. }) => Wake::Admitted {
                grant: Grant::new(token, ttl).with(|it| it.store_time = store_time),
                stamp,
                since_try: Duration::ZERO,
            },
            Ok(Renewal::Lost) | Err(_) => Wake::Look,
        })
    }
}

/// How long replicas may take for a claim of this ttl: a part of the verb's time limit.
fn limit(ttl: Duration) -> Duration {
    (ttl / 10).clamp(Duration::from_millis(1), LIMIT)
}
