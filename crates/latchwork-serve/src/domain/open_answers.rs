//! Limits the long answers that each token reads at a time: streams of events, lists of locks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::refusal::Refusal;

/// Counts the open answers of a kind by the names of their tokens.
#[derive(Debug, Clone)]
pub(crate) struct OpenAnswers {
    counts: Arc<Mutex<HashMap<Arc<str>, usize>>>,
    field: &'static str,
    what: &'static str,
    most: usize,
}

/// One open answer, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenAnswer {
    all: OpenAnswers,
    owner: Arc<str>,
}

impl OpenAnswers {
    /// Allows `most` answers for each token. `field` and `what` are for messages.
    pub(crate) fn new(field: &'static str, what: &'static str, most: usize) -> Self {
        Self { counts: Arc::default(), field, what, most }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more.
    ///
    /// # Errors
    ///
    /// `Busy` if the token has too many.
    pub(crate) fn enter(&self, owner: &Arc<str>) -> Result<OpenAnswer, Refusal> {
        let mut counts = self.lock();
        let count = counts.entry(owner.clone()).or_default();
        if *count >= self.most {
            let Self { field, what, most, .. } = self;
            let message =
                format!("{field}: {most} {what} of this token are open, the most allowed");
            return Err(Refusal::limit(message, "read or close the others first"));
        }
        *count += 1;
        drop(counts);
        Ok(OpenAnswer { all: self.clone(), owner: owner.clone() })
    }
}

impl Drop for OpenAnswer {
    fn drop(&mut self) {
        let mut counts = self.all.lock();
        if let Some(count) = counts.get_mut(&self.owner) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.owner);
            }
        }
    }
}
