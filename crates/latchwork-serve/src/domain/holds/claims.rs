//! Repeated requests: the same name, chosen by the client, is the same claim.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::id::HoldId;
use crate::domain::refusal::{Kind, Refusal};
use crate::time::{at_most, spawn};

/// The result of a claim.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    /// It was granted.
    Hold(Arc<GrantedHold>),
    /// It was granted to an earlier request.
    Repeat(HoldId),
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

/// The hash of a request without its wait, to notice another request under the same name.
pub(crate) type Fingerprint = [u8; 32];

/// The claims with a name, from their first request until some time after their end.
#[derive(Default)]
pub(crate) struct Claims(Mutex<State>);

#[derive(Default)]
struct State {
    pending: HashMap<Name, PendingClaim>,
    /// Those that were granted, by the hashes of their names. They stay as long as their holds, so they are small.
    granted: BTreeMap<u64, GrantedClaim>,
    hash: RandomState,
}

struct GrantedClaim {
    /// The hash of the fingerprint.
    request: u64,
    id: HoldId,
}

/// A claim without a result.
struct PendingClaim {
    fingerprint: Fingerprint,
    /// How long its first request waits.
    wait: Duration,
    number: u64,
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
    Granted(HoldId),
    Pending {
        claims: &'a Claims,
        name: Name,
        number: u64,
        outcome: OutcomeReceiver,
        /// How long this request waits, if that is less than the first one does.
        patience: Option<Duration>,
    },
}

impl Claims {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the claim of this name, or begins it with `acquire`, which waits for `wait`. If the claim is granted just
    /// after the last request was dropped, `undo` releases the hold.
    ///
    /// # Errors
    ///
    /// `Mismatch` if the name belongs to another request.
    pub(crate) fn join<F>(
        self: &Arc<Self>,
        name: Name,
        fingerprint: Fingerprint,
        wait: Duration,
        number: u64,
        acquire: impl FnOnce() -> F,
        undo: impl FnOnce(Arc<GrantedHold>) + Send + 'static,
    ) -> Result<Ticket<'_>, Refusal>
    where
        F: Future<Output = Result<Outcome, Refusal>> + Send + 'static,
    {
        let mut claims = self.lock();
        let reused = || {
            Refusal::new(Kind::ReusedName, "Idempotency-Key: it was used for another request")
                .with_next_step(
                    "use a new key for each claim, and the same body when you repeat one",
                )
        };
        if let Some(granted) = claims.granted.get(&claims.hash.hash_one(&name)) {
            return match granted.request == claims.hash.hash_one(fingerprint) {
                true => Ok(Ticket(TicketState::Granted(granted.id))),
                false => Err(reused()),
            };
        }
        if let Some(pending) = claims.pending.get_mut(&name) {
            if pending.fingerprint != fingerprint {
                return Err(reused());
            }
            pending.requests += 1;
            let (number, outcome) = (pending.number, pending.outcome.clone());
            let patience = (wait < pending.wait).then_some(wait);
            let state = TicketState::Pending { claims: self, name, number, outcome, patience };
            return Ok(Ticket(state));
        }
        let (sender, outcome) = watch::channel(None);
        let (this, of, acquiring) = (self.clone(), name.clone(), acquire());
        let task = spawn(async move {
            let ended = acquiring.await;
            let mut claims = this.lock();
            let is_wanted = claims.pending.get(&of).is_some_and(|it| it.number == number);
            match &ended {
                Ok(Outcome::Hold(hold)) if !is_wanted => {
                    drop(claims);
                    return undo(hold.clone());
                }
                Ok(Outcome::Hold(hold)) => {
                    let (name, request) =
                        (claims.hash.hash_one(&of), claims.hash.hash_one(fingerprint));
                    claims.granted.insert(name, GrantedClaim { request, id: hold.id });
                }
                // A repeated request tries again.
                _ => {}
            }
            if is_wanted {
                // This drops the handle of the task: the task's memory stays while a handle exists.
                claims.pending.remove(&of);
            }
            drop(claims);
            // Fails if all requests were dropped.
            let _ = sender.send(Some(ended));
        });
        // The task locks the claims before it searches its own, so it is entered in time.
        let task = Some(task.abort_handle());
        let (requests, receiver) = (1, outcome.clone());
        let pending = PendingClaim { fingerprint, wait, number, requests, task, outcome: receiver };
        claims.pending.insert(name.clone(), pending);
        drop(claims);
        let patience = None;
        Ok(Ticket(TicketState::Pending { claims: self, name, number, outcome, patience }))
    }

    /// Removes the claims whose holds are no longer known.
    pub(crate) fn sweep(&self, is_known: impl Fn(HoldId) -> bool) {
        self.lock().granted.retain(|_, claim| is_known(claim.id));
    }
}

impl Ticket<'_> {
    /// Waits for the outcome. `None` if this request waits for less than the first one, and its time is over.
    ///
    /// # Errors
    ///
    /// Those of the acquire, for all requests that wait for it.
    pub(crate) async fn outcome(&mut self) -> Result<Option<Outcome>, Refusal> {
        let (outcome, patience) = match &mut self.0 {
            TicketState::Granted(id) => return Ok(Some(Outcome::Repeat(*id))),
            TicketState::Pending { outcome, patience, .. } => (outcome, *patience),
        };
        let ended = outcome.wait_for(Option::is_some);
        let ended = match patience {
            Some(patience) => at_most(patience, ended).await,
            None => Some(ended.await),
        };
        match ended {
            None => Ok(None),
            Some(Ok(ended)) => ended.clone().unwrap_or_else(|| Err(Refusal::closed())).map(Some),
            Some(Err(_)) => Err(Refusal::closed()),
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let TicketState::Pending { claims, name, number, .. } = &self.0 else { return };
        let mut claims = claims.lock();
        let pending = claims.pending.get_mut(name).filter(|it| it.number == *number);
        let Some(pending) = pending else { return };
        pending.requests -= 1;
        if pending.requests == 0 {
            // Dropping the claim's future withdraws it.
            if let Some(task) = pending.task.take() {
                task.abort();
            }
            claims.pending.remove(name);
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
        let mut ticket =
            claims.join(name.clone(), [0; 32], Duration::ZERO, 1, acquire, |_| {}).ok().unwrap();
        assert!(matches!(ticket.outcome().await, Ok(Some(Outcome::Hold(id))) if id == hold));
        drop(ticket);
        assert!(claims.lock().pending.is_empty() && Arc::strong_count(&hold) == 1);
        assert_eq!(Arc::strong_count(&room), 1);
        assert!(size_of::<(u64, GrantedClaim)>() <= 32);
        // A repeated request gets the same hold, without another acquire.
        let again = || async { Err(Refusal::closed()) };
        let mut ticket = claims.join(name, [0; 32], Duration::ZERO, 2, again, |_| {}).ok().unwrap();
        assert!(matches!(ticket.outcome().await, Ok(Some(Outcome::Repeat(id))) if id == hold.id));
    }
}
