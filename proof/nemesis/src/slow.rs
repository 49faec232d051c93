//! A store whose answers take long: what a proxy does for a server, done inside the process.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use latchwork_store::{Attempt, Backend, BackendError, Claim, Io, Renewal, Verb};

use crate::luck::Luck;

/// Passes every verb on, and holds back a third of the grants and all answers to renewals.
///
/// Validity must be counted from before the request; who counts from the answer believes too long,
/// by as much as the answer was held back.
#[derive(Debug)]
pub struct SlowAnswers {
    store: Arc<dyn Backend>,
    io: Io,
    longest: Duration,
    luck: Mutex<Luck>,
}

impl SlowAnswers {
    /// Holds answers of `store` back for up to `longest`.
    pub fn new(store: Arc<dyn Backend>, io: Io, longest: Duration, luck: Luck) -> Arc<Self> {
        Arc::new(Self { store, io, longest, luck: Mutex::new(luck) })
    }

    async fn hold_back(&self, percent: u64) {
        let pause = {
            let mut luck = self.luck.lock().unwrap_or_else(PoisonError::into_inner);
            luck.percent(percent).then(|| luck.times(self.longest, 0.5..1.0))
        };
        if let Some(pause) = pause {
            self.io.sleep(pause).await;
        }
    }
}

// Not enrolled: it delays the answers of a store that is.
impl Backend for SlowAnswers {
    latchwork_store::pass_on!(store: capabilities, wait, release, resize, inspect);

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Attempt, BackendError>> {
        Box::pin(async move {
            let answer = self.store.try_acquire(claim).await;
            if let Ok(Attempt::Granted(_)) = answer {
                self.hold_back(33).await;
            }
            answer
        })
    }

    fn renew_all<'a>(
        &'a self,
        claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Renewal, BackendError>>> {
        Box::pin(async move {
            let answers = self.store.renew_all(claims).await;
            self.hold_back(100).await;
            answers
        })
    }
}
