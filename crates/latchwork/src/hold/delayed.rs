//! Hides lock delays: to the engine, every ttl is the one that a holder relies on.

use std::future::poll_fn;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use latchwork_store::{
    Answers, Attempt, Backend, BackendError, Blocked, Claim, Renewal, Verb, Wake,
};

/// A store that keeps a claim for its lock delay beyond its ttl.
///
/// Each verb that carries a ttl and that the engine calls is here: the claim gets room for its delay on the way to the
/// store, and the answer comes back without it, so that a hold is over before its delay begins. All other verbs are the
/// store's own. What `inspect` shows is what the store keeps, with the delay.
#[derive(Debug, Clone)]
pub(crate) struct Delayed(pub(crate) Arc<dyn Backend>);

impl Delayed {
    /// How long the store keeps a claim that is not renewed.
    pub(crate) fn kept_for(claim: &Claim) -> Duration {
        claim.ttl.saturating_add(claim.holder.room_for_delay())
    }

    pub(crate) fn try_acquire<'a>(
        &'a self,
        claim: &'a Claim,
    ) -> Verb<'a, Result<Attempt, BackendError>> {
        if !is_delayed(claim) {
            return self.0.try_acquire(claim);
        }
        Box::pin(async move {
            let mut attempt = self.0.try_acquire(&as_kept(claim)).await?;
            if let Attempt::Granted(grant) = &mut attempt {
                grant.ttl = relied_on(claim, grant.ttl);
            }
            Ok(attempt)
        })
    }

    pub(crate) fn wait<'a>(
        &'a self,
        claim: &'a Claim,
        blocked: &'a Blocked,
    ) -> Verb<'a, Result<Wake, BackendError>> {
        if !is_delayed(claim) {
            return self.0.wait(claim, blocked);
        }
        Box::pin(async move {
            let mut wake = self.0.wait(&as_kept(claim), blocked).await?;
            if let Wake::Admitted { grant, .. } = &mut wake {
                let whole = grant.ttl;
                grant.ttl = relied_on(claim, whole);
                // A pushed grant is short. If the delay takes most of it, the next try makes it whole.
                if grant.ttl < whole / 2 {
                    wake = Wake::Look;
                }
            }
            Ok(wake)
        })
    }

    pub(crate) fn renew_each<'a>(
        &'a self,
        claims: &'a [Claim],
        answers: &'a Answers,
    ) -> Verb<'a, ()> {
        if !claims.iter().any(is_delayed) {
            return self.0.renew_each(claims, answers);
        }
        Box::pin(async move {
            let kept: Vec<Claim> = claims.iter().map(as_kept).collect();
            let said = Answers::default();
            let mut verb = self.0.renew_each(&kept, &said);
            poll_fn(|cx| {
                let polled = verb.as_mut().poll(cx);
                for (at, mut answer) in said.take() {
                    if let (Some(claim), Ok(Renewal::Held { ttl, .. })) =
                        (claims.get(at), &mut answer)
                    {
                        *ttl = relied_on(claim, *ttl);
                    }
                    answers.say(at, answer);
                }
                polled
            })
            .await;
        })
    }
}

impl Deref for Delayed {
    type Target = dyn Backend;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

fn is_delayed(claim: &Claim) -> bool {
    claim.holder.lock_delay.is_some()
}

fn as_kept(claim: &Claim) -> Claim {
    claim.clone().with(|it| it.ttl = Delayed::kept_for(claim))
}

fn relied_on(claim: &Claim, ttl: Duration) -> Duration {
    ttl.saturating_sub(claim.holder.room_for_delay())
}
