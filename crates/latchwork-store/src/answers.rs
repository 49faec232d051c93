//! Collects the answers of renewals, each as soon as it arrives.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::BackendError;
use crate::words::Renewal;

/// Collects the answers of [`Backend::renew_each`](crate::Backend::renew_each).
#[derive(Debug, Default)]
pub struct Answers(Mutex<Vec<(usize, Result<Renewal, BackendError>)>>);

impl Answers {
    /// Records the answer for the claim at this index. The first answer counts.
    pub fn say(&self, claim: usize, answer: Result<Renewal, BackendError>) {
        self.lock().push((claim, answer));
    }

    /// Returns the answers that were recorded since the last call.
    pub fn take(&self) -> Vec<(usize, Result<Renewal, BackendError>)> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(usize, Result<Renewal, BackendError>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
