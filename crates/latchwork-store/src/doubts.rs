//! Where a backend says which of its claims may have ended.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

use crate::claim::ClaimId;

/// Doubts about claims, for a store that tells of their end by itself; see
/// [`Backend::doubts`](crate::Backend::doubts).
///
/// Each engine on the backend has a [sink](DoubtSink) of its own, for the backend does not know
/// whose a claim is. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Doubts(Arc<Mutex<Vec<Weak<DoubtSink>>>>);

/// The claims in doubt that one engine has not looked at yet, its own and those of others.
#[derive(Debug, Default)]
pub struct DoubtSink {
    claims: Mutex<Vec<ClaimId>>,
    told: Notify,
}

impl Doubts {
    /// Asks for a renewal of this claim now: the store has let it be known that it may have ended.
    ///
    /// The renewal settles it, so a word too much costs a request and does no harm; a claim that
    /// nobody holds is passed over.
    pub fn raise(&self, claim: ClaimId) {
        self.lock().retain(|sink| {
            let Some(sink) = sink.upgrade() else { return false };
            sink.lock().push(claim);
            sink.told.notify_one();
            true
        });
    }

    /// Hears of all doubts from now on, until the sink is dropped.
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
    /// Completes when there is one, or was one.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time; the doubts stay.
    pub async fn told(&self) {
        self.told.notified().await;
    }

    /// The doubts since the last time.
    pub fn take(&self) -> Vec<ClaimId> {
        mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ClaimId>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
