//! How many streams of events each token has open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::api::error::ApiError;

/// The most streams of one token.
const MOST: usize = 64;

/// Counts streams by the names of their tokens.
#[derive(Debug, Default, Clone)]
pub(crate) struct Listeners(Arc<Mutex<HashMap<Arc<str>, usize>>>);

/// One stream, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Listening {
    listeners: Listeners,
    owner: Arc<str>,
}

impl Listeners {
    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more stream.
    ///
    /// # Errors
    ///
    /// `Busy` if the token has too many.
    pub(crate) fn enter(&self, owner: &Arc<str>) -> Result<Listening, ApiError> {
        let mut counts = self.lock();
        let count = counts.entry(owner.clone()).or_default();
        if *count >= MOST {
            let message =
                format!("events: {MOST} streams of this token are open, the most allowed");
            return Err(ApiError::busy(message, "share one stream, or close others"));
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
