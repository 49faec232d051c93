//! The ends of holds: not renewed, lost, or taken away; and the loop that notices them.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use latchwork::store::Key;

use super::Service;
use crate::events::observer::Loss;
use crate::holds::ended::Ending;

/// How often claims that are long over are forgotten.
const SWEEP: Duration = Duration::from_secs(30);

impl Service {
    /// Ends the holds whose clients do not renew them, and those that the library has lost, until the
    /// service stops.
    pub(crate) async fn watch(self: Arc<Self>) {
        let losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut losses) = losses else { return };
        let mut swept = self.clock.now();
        loop {
            let (over, next) = self.registry.over();
            for (hold, ending) in over {
                self.told_end(&hold, ending);
                crate::metrics::not_renewed();
                // Released in the background.
                drop(hold);
            }
            let now = self.clock.now();
            if now.since(swept) >= SWEEP {
                swept = now;
                self.registry.forget();
                self.claims.forget(|id| self.registry.knows(id));
            }
            self.turns.send_modify(|count| *count = count.wrapping_add(1));
            let wake = next.min(now.plus(SWEEP));
            tokio::select! {
                () = self.clock.sleep_until(wake) => {}
                () = self.registry.sooner.notified() => {}
                loss = losses.recv() => match loss {
                    Some(loss) => self.lost(&loss),
                    None => return,
                },
            }
        }
    }

    /// Completes when the loop that ends holds has turned once more, and the threads that renew leases have run
    /// a task. The store is not asked: to end the service would not bring it back.
    pub(crate) async fn turn(&self) {
        let mut turns = self.turns.subscribe();
        self.registry.sooner.notify_one();
        // An error means that the service is gone.
        let _ = turns.changed().await;
        self.locks.heartbeat().await;
    }

    fn lost(&self, loss: &Loss) {
        let reason = loss.reason.word();
        if let Some(hold) = self.registry.lost(&loss.key, loss.token, reason) {
            tracing::warn!(name = self.names.name_of(loss.key.as_str()), token = %loss.token, reason, "a hold was lost");
            self.told_end(&hold, Ending::Lost(reason));
        }
    }

    /// The holds of a key have ended by force.
    pub(crate) fn evicted(&self, key: &Key) {
        for hold in self.registry.evict(key) {
            self.told_end(&hold, Ending::Forced);
        }
    }
}
