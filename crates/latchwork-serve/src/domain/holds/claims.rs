//! Requests that are repeated: the same `Idempotency-Key` is the same claim.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::id::HoldId;
use crate::http::error::ApiError;
use crate::time::spawn;

/// What became of a claim.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    /// It was granted.
    Hold(HoldId),
    /// A task that is done or running.
    Skipped(Box<latchwork::once::Skipped>),
}

/// The name of a claim: who made it, and the key that it chose.
type Name = (Arc<str>, String);

/// What the request was, so that another one with the same key is noticed.
pub(crate) type Print = [u8; 32];

/// The claims with a key, from their first request until a while after their end.
#[derive(Default)]
pub(crate) struct Claims(Mutex<HashMap<Name, Entry>>);

struct Entry {
    print: Print,
    number: u64,
    stage: Stage,
}

/// A claim that was granted stays for as long as its hold, so it is small.
enum Stage {
    Asked(Box<Asked>),
    Granted(HoldId),
}

/// A claim that waits.
struct Asked {
    /// How many requests wait for it.
    requests: usize,
    task: Option<AbortHandle>,
    outcome: Told,
}

/// What becomes of a claim, once it is known.
type Told = watch::Receiver<Option<Result<Outcome, ApiError>>>;

/// One request that waits for a claim. The last one that is dropped withdraws the claim.
pub(crate) struct Ticket<'a>(Known<'a>);

enum Known<'a> {
    Granted(HoldId),
    Asked { claims: &'a Claims, name: Name, number: u64, outcome: Told },
}

impl Claims {
    fn lock(&self) -> MutexGuard<'_, HashMap<Name, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the claim of this name, or begins it with `acquire`. `undo` gives back a hold that was
    /// granted when the last request had just gone.
    ///
    /// # Errors
    ///
    /// `Mismatch` if the name belongs to another request.
    pub(crate) fn join<F>(
        self: &Arc<Self>,
        name: Name,
        print: Print,
        number: u64,
        acquire: impl FnOnce() -> F,
        undo: impl FnOnce(HoldId) + Send + 'static,
    ) -> Result<Ticket<'_>, ApiError>
    where
        F: Future<Output = Result<Outcome, ApiError>> + Send + 'static,
    {
        let mut claims = self.lock();
        if let Some(entry) = claims.get_mut(&name) {
            if entry.print != print {
                return Err(ApiError::new(
                    StatusCode::UNPROCESSABLE_ENTITY,
                    "Mismatch",
                    "Idempotency-Key: it was used for another request",
                )
                .next_step("use a new key for each claim, and the same body when you repeat one"));
            }
            let number = entry.number;
            return Ok(Ticket(match &mut entry.stage {
                Stage::Granted(hold) => Known::Granted(*hold),
                Stage::Asked(asked) => {
                    asked.requests += 1;
                    let outcome = asked.outcome.clone();
                    Known::Asked { claims: self, name, number, outcome }
                }
            }));
        }
        let (told, outcome) = watch::channel(None);
        let (this, of, acquiring) = (self.clone(), name.clone(), acquire());
        let task = spawn(async move {
            let ended = acquiring.await;
            let mut claims = this.lock();
            let entry = claims.get_mut(&of).filter(|entry| entry.number == number);
            match (entry, &ended) {
                // This lets go of the task: its memory stays while anything can abort it.
                (Some(entry), Ok(Outcome::Hold(id))) => entry.stage = Stage::Granted(*id),
                // A repeated request tries again.
                (Some(_), _) => drop(claims.remove(&of)),
                (None, Ok(Outcome::Hold(id))) => {
                    drop(claims);
                    return undo(*id);
                }
                (None, _) => {}
            }
            drop(claims);
            // Nobody listens if all requests have gone.
            let _ = told.send(Some(ended));
        });
        // The task waits for the claims before it looks for its own.
        let task = Some(task.abort_handle());
        let asked = Asked { requests: 1, task, outcome: outcome.clone() };
        let entry = Entry { print, number, stage: Stage::Asked(Box::new(asked)) };
        claims.insert(name.clone(), entry);
        drop(claims);
        Ok(Ticket(Known::Asked { claims: self, name, number, outcome }))
    }

    /// Forgets the claims whose holds are not known any more.
    pub(crate) fn forget(&self, is_known: impl Fn(HoldId) -> bool) {
        self.lock().retain(|_, entry| match entry.stage {
            Stage::Asked(_) => true,
            Stage::Granted(hold) => is_known(hold),
        });
    }
}

impl Ticket<'_> {
    /// Waits for the outcome.
    ///
    /// # Errors
    ///
    /// Those of the acquire, for all that wait for it.
    pub(crate) async fn outcome(&mut self) -> Result<Outcome, ApiError> {
        let outcome = match &mut self.0 {
            Known::Granted(hold) => return Ok(Outcome::Hold(*hold)),
            Known::Asked { outcome, .. } => outcome,
        };
        match outcome.wait_for(Option::is_some).await {
            Ok(ended) => ended.clone().unwrap_or_else(|| Err(ApiError::closed())),
            Err(_) => Err(ApiError::closed()),
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let Known::Asked { claims, name, number, .. } = &self.0 else { return };
        let mut claims = claims.lock();
        let Some(entry) = claims.get_mut(name).filter(|it| it.number == *number) else { return };
        let Stage::Asked(asked) = &mut entry.stage else { return };
        asked.requests -= 1;
        if asked.requests == 0 {
            // The claim is withdrawn where its future is dropped.
            if let Some(task) = asked.task.take() {
                task.abort();
            }
            claims.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A task keeps all of its memory while anything can abort it, so a claim must let go of its task.
    #[tokio::test]
    async fn a_granted_claim_keeps_nothing_of_its_request() {
        let claims = Arc::<Claims>::default();
        let name: Name = ("me".into(), "key".to_owned());
        let (hold, room) = (HoldId::random(), Arc::new(()));
        let of_request = room.clone();
        let acquire = || async move {
            drop(of_request);
            Ok(Outcome::Hold(hold))
        };
        let mut ticket = claims.join(name.clone(), [0; 32], 1, acquire, |_| {}).ok().unwrap();
        assert!(matches!(ticket.outcome().await, Ok(Outcome::Hold(id)) if id == hold));
        drop(ticket);
        assert!(matches!(claims.lock()[&name].stage, Stage::Granted(id) if id == hold));
        assert_eq!(Arc::strong_count(&room), 1);
        assert!(size_of::<(Name, Entry)>() <= 128, "{}", size_of::<(Name, Entry)>());
        // A repeated request gets the same hold, and asks nobody for it.
        let again = || async { Err(ApiError::closed()) };
        let mut ticket = claims.join(name, [0; 32], 2, again, |_| {}).ok().unwrap();
        assert!(matches!(ticket.outcome().await, Ok(Outcome::Hold(id)) if id == hold));
    }
}
