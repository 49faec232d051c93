//! Where a backend says the answers of renewals, each as soon as it is known.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::BackendError;
use crate::words::Renewal;

/// Takes the answers of [`Backend::renew_each`](crate::Backend::renew_each).
#[derive(Debug, Default)]
pub struct Answers(Mutex<Vec<(usize, Result<Renewal, BackendError>)>>);

impl Answers {
    /// Says the answer of the claim at this place in the list. The first one counts.
    pub fn say(&self, claim: usize, answer: Result<Renewal, BackendError>) {
        self.lock().push((claim, answer));
    }

    /// What was said since the last time.
    pub fn take(&self) -> Vec<(usize, Result<Renewal, BackendError>)> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(usize, Result<Renewal, BackendError>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
