//! Repeated requests: the same name, chosen by the client, is the same claim.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::id::HoldId;
use crate::domain::refusal::{Kind, Refusal};
use crate::time::spawn;

/// The result of a claim.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    /// It was granted.
    Hold(Arc<GrantedHold>),
    /// A task that is done or running.
    Skipped(Box<latchwork::once::Skipped>),
}

/// A hold that was granted, and the id that its client gets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GrantedHold {
    pub(crate) id: HoldId,
    pub(crate) text: Box<str>,
}

/// The name of a claim: its owner, and the text that the client chose for it.
type Name = (Arc<str>, String);

/// The hash of a request, to notice another request under the same name.
pub(crate) type Fingerprint = [u8; 32];

/// The claims with a name, from their first request until some time after their end.
#[derive(Default)]
pub(crate) struct Claims(Mutex<HashMap<Name, Entry>>);

struct Entry {
    fingerprint: Fingerprint,
    number: u64,
    stage: Stage,
}

/// An entry of a granted claim stays as long as its hold, so it is small.
enum Stage {
    Pending(Box<PendingClaim>),
    Granted(Arc<GrantedHold>),
}

/// A claim without a result.
struct PendingClaim {
    /// The number of requests that wait for it.
    requests: usize,
    task: Option<AbortHandle>,
    outcome: OutcomeReceiver,
}

/// Receives the result of a claim.
type OutcomeReceiver = watch::Receiver<Option<Result<Outcome, Refusal>>>;

/// One request that waits for a claim. Dropping the last one withdraws the claim.
pub(crate) struct Ticket<'a>(TicketState<'a>);

enum TicketState<'a> {
    Granted(Arc<GrantedHold>),
    Pending { claims: &'a Claims, name: Name, number: u64, outcome: OutcomeReceiver },
}

impl Claims {
    fn lock(&self) -> MutexGuard<'_, HashMap<Name, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the claim of this name, or begins it with `acquire`. If the claim is granted just after the last
    /// request was dropped, `undo` releases the hold.
    ///
    /// # Errors
    ///
    /// `Mismatch` if the name belongs to another request.
    pub(crate) fn join<F>(
        self: &Arc<Self>,
        name: Name,
        fingerprint: Fingerprint,
        number: u64,
        acquire: impl FnOnce() -> F,
        undo: impl FnOnce(Arc<GrantedHold>) + Send + 'static,
    ) -> Result<Ticket<'_>, Refusal>
    where
        F: Future<Output = Result<Outcome, Refusal>> + Send + 'static,
    {
        let mut claims = self.lock();
        if let Some(entry) = claims.get_mut(&name) {
            if entry.fingerprint != fingerprint {
                return Err(Refusal::new(
                    Kind::ReusedName,
                    "Idempotency-Key: it was used for another request",
                )
                .with_next_step(
                    "use a new key for each claim, and the same body when you repeat one",
                ));
            }
            let number = entry.number;
            return Ok(Ticket(match &mut entry.stage {
                Stage::Granted(hold) => TicketState::Granted(hold.clone()),
                Stage::Pending(pending) => {
                    pending.requests += 1;
                    let outcome = pending.outcome.clone();
                    TicketState::Pending { claims: self, name, number, outcome }
                }
            }));
        }
        let (sender, outcome) = watch::channel(None);
        let (this, of, acquiring) = (self.clone(), name.clone(), acquire());
        let task = spawn(async move {
            let ended = acquiring.await;
            let mut claims = this.lock();
            let entry = claims.get_mut(&of).filter(|entry| entry.number == number);
            match (entry, &ended) {
                // This drops the handle of the task: the task's memory stays while a handle exists.
                (Some(entry), Ok(Outcome::Hold(hold))) => {
                    entry.stage = Stage::Granted(hold.clone())
                }
                // A repeated request tries again.
                (Some(_), _) => drop(claims.remove(&of)),
                (None, Ok(Outcome::Hold(hold))) => {
                    drop(claims);
                    return undo(hold.clone());
                }
                (None, _) => {}
            }
            drop(claims);
            // Fails if all requests were dropped.
            let _ = sender.send(Some(ended));
        });
        // The task locks the claims before it searches its own, so it is entered in time.
        let task = Some(task.abort_handle());
        let pending = PendingClaim { requests: 1, task, outcome: outcome.clone() };
        let entry = Entry { fingerprint, number, stage: Stage::Pending(Box::new(pending)) };
        claims.insert(name.clone(), entry);
        drop(claims);
        Ok(Ticket(TicketState::Pending { claims: self, name, number, outcome }))
    }

    /// Removes the claims whose holds are no longer known.
    pub(crate) fn sweep(&self, is_known: impl Fn(HoldId) -> bool) {
        self.lock().retain(|_, entry| match &entry.stage {
            Stage::Pending(_) => true,
            Stage::Granted(hold) => is_known(hold.id),
        });
    }
}

impl Ticket<'_> {
    /// Whether the claim was granted to an earlier request.
    pub(crate) fn is_repeat(&self) -> bool {
        matches!(self.0, TicketState::Granted(_))
    }

    /// Waits for the outcome.
    ///
    /// # Errors
    ///
    /// Those of the acquire, for all requests that wait for it.
    pub(crate) async fn outcome(&mut self) -> Result<Outcome, Refusal> {
        let outcome = match &mut self.0 {
            TicketState::Granted(hold) => return Ok(Outcome::Hold(hold.clone())),
            TicketState::Pending { outcome, .. } => outcome,
        };
        match outcome.wait_for(Option::is_some).await {
            Ok(ended) => ended.clone().unwrap_or_else(|| Err(Refusal::closed())),
            Err(_) => Err(Refusal::closed()),
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let TicketState::Pending { claims, name, number, .. } = &self.0 else { return };
        let mut claims = claims.lock();
        let Some(entry) = claims.get_mut(name).filter(|it| it.number == *number) else { return };
        let Stage::Pending(pending) = &mut entry.stage else { return };
        pending.requests -= 1;
        if pending.requests == 0 {
            // Dropping the claim's future withdraws it.
            if let Some(task) = pending.task.take() {
                task.abort();
            }
            claims.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A task keeps all of its memory while a handle can abort it, so a granted claim keeps no handle.
    #[tokio::test]
    async fn a_granted_claim_keeps_nothing_of_its_request() {
        let claims = Arc::<Claims>::default();
        let name: Name = ("me".into(), "key".to_owned());
        let hold = Arc::new(GrantedHold { id: HoldId::random(), text: "id".into() });
        let room = Arc::new(());
        let (of_request, granted) = (room.clone(), hold.clone());
        let acquire = || async move {
            drop(of_request);
            Ok(Outcome::Hold(granted))
        };
        let mut ticket = claims.join(name.clone(), [0; 32], 1, acquire, |_| {}).ok().unwrap();
        assert!(matches!(ticket.outcome().await, Ok(Outcome::Hold(id)) if id == hold));
        drop(ticket);
        assert!(matches!(&claims.lock()[&name].stage, Stage::Granted(id) if *id == hold));
        assert_eq!(Arc::strong_count(&room), 1);
        assert!(size_of::<(Name, Entry)>() <= 128, "{}", size_of::<(Name, Entry)>());
        // A repeated request gets the same hold, without another acquire.
        let again = || async { Err(Refusal::closed()) };
        let mut ticket = claims.join(name, [0; 32], 2, again, |_| {}).ok().unwrap();
        assert!(matches!(ticket.outcome().await, Ok(Outcome::Hold(id)) if id == hold));
    }
}
