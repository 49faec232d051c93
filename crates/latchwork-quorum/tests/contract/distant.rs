//! A node that is away: its answers take their time, and can be lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use latchwork_conformance::Fault;
use latchwork_store::{
    Attempt, Backend, BackendError, BackendErrorKind, Blocked, Claim, Effect, Linger, Query,
    Released, Renewal, Snapshot, Verb, Wake,
};

/// Passes everything on, each request after a turn of its own length, so that nodes hear of things
/// in different orders; and loses requests or answers when told to.
#[derive(Debug)]
pub(crate) struct Distant {
    pub(crate) node: Arc<dyn Backend>,
    pub(crate) fault: Arc<AtomicU8>,
    pub(crate) turns: AtomicU8,
}

impl Distant {
    async fn pass<T>(&self, verb: Verb<'_, T>) -> Result<T, BackendError> {
        let turns = self.turns.fetch_add(3, Ordering::SeqCst) % 5;
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        let fault = self.fault.load(Ordering::SeqCst);
        if fault == Fault::LoseRequests as u8 {
            return Err(silent());
        }
        let answer = verb.await;
        if fault == Fault::LoseAnswers as u8 { Err(silent()) } else { Ok(answer) }
    }
}

fn silent() -> BackendError {
    BackendError::new(BackendErrorKind::Unreachable, Effect::Unknown, "the node is silent")
}

impl Backend for Distant {
    latchwork_store::pass_on!(node: capabilities, ttl_may_change, renews_for_others, detach, adopt);

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Attempt, BackendError>> {
        Box::pin(async move { self.pass(self.node.try_acquire(claim)).await? })
    }

    fn wait<'a>(
        &'a self,
        claim: &'a Claim,
        blocked: &'a Blocked,
    ) -> Verb<'a, Result<Wake, BackendError>> {
        Box::pin(async move { self.pass(self.node.wait(claim, blocked)).await? })
    }

    fn renew_all<'a>(
        &'a self,
        claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Renewal, BackendError>>> {
        Box::pin(async move {
            match self.pass(self.node.renew_all(claims)).await {
                Ok(answers) => answers,
                Err(error) => claims.iter().map(|_| Err(error.clone())).collect(),
            }
        })
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        linger: Linger,
    ) -> Verb<'a, Result<Released, BackendError>> {
        Box::pin(async move { self.pass(self.node.release(claim, linger)).await? })
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Verb<'a, Result<Vec<Snapshot>, BackendError>> {
        Box::pin(async move { self.pass(self.node.inspect(query)).await? })
    }
}
