//! Claims that may have ended, as a backend reports them.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

use crate::claim::ClaimId;

/// Claims in doubt, from stores that report the end of a claim; see
/// [`Backend::doubts`](crate::Backend::doubts).
///
/// Each engine on the backend has a [sink](DoubtSink) of its own, because the backend does not know
/// which engine has a claim. Clones share their sinks.
#[derive(Debug, Clone, Default)]
pub struct Doubts(Arc<Mutex<Vec<Weak<DoubtSink>>>>);

/// The claims in doubt that one engine has not examined yet, its own and those of others.
#[derive(Debug, Default)]
pub struct DoubtSink {
    claims: Mutex<Vec<ClaimId>>,
    told: Notify,
}

impl Doubts {
    /// Requests a renewal of this claim now, because the store has reported that it may have ended.
    ///
    /// The renewal settles the doubt, so a false report costs one request and does no harm. A claim
    /// that is not held is ignored.
    pub fn raise(&self, claim: ClaimId) {
        self.lock().retain(|sink| {
            let Some(sink) = sink.upgrade() else { return false };
            sink.lock().push(claim);
            sink.told.notify_one();
            true
        });
    }

    /// Creates a sink that receives all doubts from now on, until it is dropped.
    pub fn sink(&self) -> Arc<DoubtSink> {
        let sink = Arc::default();
        self.lock().push(Arc::downgrade(&sink));
        sink
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<DoubtSink>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DoubtSink {
    /// Completes when a doubt was raised.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time; the doubts stay.
    pub async fn told(&self) {
        self.told.notified().await;
    }

    /// Returns the doubts since the last call.
    pub fn take(&self) -> Vec<ClaimId> {
        mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ClaimId>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
