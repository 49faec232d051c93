//! The backend of a test store: in memory, with scripted answers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use latchwork_store::{
    Answers, Attempt, Backend, BackendError, Blocked, Capabilities, Cause, Claim, Doubts, Holder,
    Linger, MemoryBackend, Query, Released, Renewal, Resized, Snapshot, Verb, Wake,
};

use super::script::{Answer, Call, Script, Scripted};

/// How long an acquire waits that was blocked by the script alone.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// What tells such an acquire from one that waits for a holder.
const SCRIPTED: &str = "scripted";

pub(super) struct ScriptedBackend {
    pub(super) inner: Arc<MemoryBackend>,
    pub(super) script: Arc<Script>,
    pub(super) doubts: Doubts,
}

impl ScriptedBackend {
    async fn renew(&self, claim: &Claim) -> Result<Renewal, BackendError> {
        let act = async {
            let mut answers = self.inner.renew_all(std::slice::from_ref(claim)).await;
            answers.pop().expect("one answer for each claim")
        };
        let scripted = self.script.take(Some(&claim.key), Call::Renew);
        carry_out(scripted, act).await
    }
}

/// Carries a call out, or fails, as the script says.
async fn carry_out<T>(
    scripted: Scripted,
    act: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    match scripted.answer {
        None => act.await,
        Some(Answer::Pending) => {
            scripted.resumed.await;
            act.await
        }
        Some(answer) => {
            if answer == Answer::AnswerLost {
                let _ = act.await;
            }
            Err(answer.error())
        }
    }
}

/// The answer to an acquire that the script blocks.
fn blocked_by(answer: Answer) -> Option<Blocked> {
    let (cause, holder) = match answer {
        Answer::Held => (Cause::Held, Some(Holder::new("another client, as the test says"))),
        Answer::Quarantined => (Cause::Quarantine, None),
        _ => return None,
    };
    Some(Blocked::by(cause).with(|it| {
        it.holder = holder;
        it.retry_after = Some(LOOK_AGAIN);
        it.resume = Some(SCRIPTED.into());
    }))
}

impl fmt::Debug for ScriptedBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedBackend").finish_non_exhaustive()
    }
}

// Not enrolled: it disturbs a store that is tried.
impl Backend for ScriptedBackend {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Attempt, BackendError>> {
        Box::pin(async move {
            let scripted = self.script.take(Some(&claim.key), Call::Acquire);
            if let Some(blocked) = scripted.answer.and_then(blocked_by) {
                return Ok(Attempt::Blocked(blocked));
            }
            carry_out(scripted, self.inner.try_acquire(claim)).await
        })
    }

    fn wait<'a>(
        &'a self,
        claim: &'a Claim,
        blocked: &'a Blocked,
    ) -> Verb<'a, Result<Wake, BackendError>> {
        Box::pin(async move {
            let act = async {
                if blocked.resume.as_deref() == Some(SCRIPTED) {
                    // The engine tries again when `retry_after` is over.
                    return std::future::pending().await;
                }
                self.inner.wait(claim, blocked).await
            };
            let scripted = self.script.take(Some(&claim.key), Call::Wait);
            carry_out(scripted, act).await
        })
    }

    fn renew_all<'a>(
        &'a self,
        claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Renewal, BackendError>>> {
        Box::pin(join_all(claims.iter().map(|claim| self.renew(claim))))
    }

    fn renew_each<'a>(&'a self, claims: &'a [Claim], answers: &'a Answers) -> Verb<'a, ()> {
        Box::pin(async move {
            // Side by side: one that is pending delays no other.
            let renewals = claims.iter().enumerate().map(|(place, claim)| async move {
                answers.say(place, self.renew(claim).await);
            });
            join_all(renewals).await;
        })
    }

    fn resize<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Resized, BackendError>> {
        self.inner.resize(claim)
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        linger: Linger,
    ) -> Verb<'a, Result<Released, BackendError>> {
        Box::pin(async move {
            let scripted = self.script.take(Some(&claim.key), Call::Release);
            carry_out(scripted, self.inner.release(claim, linger)).await
        })
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Verb<'a, Result<Vec<Snapshot>, BackendError>> {
        Box::pin(async move {
            let key = match query {
                Query::Key(key) => Some(key),
                Query::Prefix(_) => None,
            };
            let scripted = self.script.take(key, Call::Inspect);
            carry_out(scripted, self.inner.inspect(query)).await
        })
    }

    fn ttl_may_change(&self) -> bool {
        self.inner.ttl_may_change()
    }

    fn doubts(&self) -> Option<&Doubts> {
        Some(&self.doubts)
    }
}
