//! Requests that are repeated: the same `Idempotency-Key` is the same claim.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::id::HoldId;
use crate::api::error::ApiError;
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
    /// How many requests wait for it.
    requests: usize,
    task: Option<AbortHandle>,
    /// Set once it was granted.
    hold: Option<HoldId>,
    outcome: watch::Receiver<Option<Result<Outcome, ApiError>>>,
}

/// One request that waits for a claim. The last one that is dropped withdraws the claim.
pub(crate) struct Ticket<'a> {
    claims: &'a Claims,
    name: Name,
    number: u64,
    outcome: watch::Receiver<Option<Result<Outcome, ApiError>>>,
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
            entry.requests += 1;
            let (number, outcome) = (entry.number, entry.outcome.clone());
            drop(claims);
            return Ok(Ticket { claims: self, name, number, outcome });
        }
        let (told, outcome) = watch::channel(None);
        let entry =
            Entry { print, number, requests: 1, task: None, hold: None, outcome: outcome.clone() };
        claims.insert(name.clone(), entry);
        let (this, of, acquiring) = (self.clone(), name.clone(), acquire());
        let task = spawn(async move {
            let ended = acquiring.await;
            let mut claims = this.lock();
            let entry = claims.get_mut(&of).filter(|entry| entry.number == number);
            match (entry, &ended) {
                (Some(entry), Ok(Outcome::Hold(id))) => entry.hold = Some(*id),
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
        if let Some(entry) = claims.get_mut(&name) {
            entry.task = Some(task.abort_handle());
        }
        drop(claims);
        Ok(Ticket { claims: self, name, number, outcome })
    }

    /// Forgets the claims whose holds are not known any more.
    pub(crate) fn forget(&self, is_known: impl Fn(HoldId) -> bool) {
        self.lock().retain(|_, entry| entry.hold.is_none_or(&is_known));
    }
}

impl Ticket<'_> {
    /// Waits for the outcome.
    ///
    /// # Errors
    ///
    /// Those of the acquire, for all that wait for it.
    pub(crate) async fn outcome(&mut self) -> Result<Outcome, ApiError> {
        match self.outcome.wait_for(Option::is_some).await {
            Ok(ended) => ended.clone().unwrap_or_else(|| Err(ApiError::closed())),
            Err(_) => Err(ApiError::closed()),
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut claims = self.claims.lock();
        let Some(entry) = claims.get_mut(&self.name).filter(|it| it.number == self.number) else {
            return;
        };
        entry.requests -= 1;
        if entry.requests == 0 && entry.hold.is_none() {
            // The claim is withdrawn where its future is dropped.
            if let Some(task) = entry.task.take() {
                task.abort();
            }
            claims.remove(&self.name);
        }
    }
}
