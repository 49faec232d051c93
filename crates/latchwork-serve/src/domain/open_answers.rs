//! How many long answers of a kind each token reads: streams of events, lists of locks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::http::error::ApiError;

/// Counts answers by the names of their tokens.
#[derive(Debug, Clone)]
pub(crate) struct Listeners {
    counts: Arc<Mutex<HashMap<Arc<str>, usize>>>,
    field: &'static str,
    what: &'static str,
    most: usize,
}

/// One answer, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Listening {
    listeners: Listeners,
    owner: Arc<str>,
}

impl Listeners {
    /// Counts at most so many for each token. The words are for messages.
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
    pub(crate) fn enter(&self, owner: &Arc<str>) -> Result<Listening, ApiError> {
        let mut counts = self.lock();
        let count = counts.entry(owner.clone()).or_default();
        if *count >= self.most {
            let Self { field, what, most, .. } = self;
            let message =
                format!("{field}: {most} {what} of this token are open, the most allowed");
            return Err(ApiError::busy(message, "read or close the others first"));
        }
        *count += 1;
        drop(counts);
        Ok(Listening { listeners: self.clone(), owner: owner.clone() })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut counts = self.listeners.lock();
        if let Some(count) = counts.get_mut(&self.owner) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.owner);
            }
        }
    }
}
