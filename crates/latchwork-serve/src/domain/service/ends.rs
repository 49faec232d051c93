//! The ends of holds: given up, not renewed, lost, or taken away; and the loop that notices them.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use latchwork::store::Key;
use latchwork::{Error, ErrorKind, ForceReleased};

use super::Service;
use crate::domain::events::hub::EventView;
use crate::domain::events::observer::Loss;
use crate::domain::holds::ended::Ending;
use crate::domain::holds::ends::GivenUp;
use crate::domain::holds::id::HoldId;
use crate::domain::holds::registry::Hold;
use crate::domain::holds::release::{Confirmed, How, Said, Teller, answer};
use crate::http::Caller;
use crate::http::error::ApiError;
use crate::http::views::millis;
use crate::time::spawn;

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
        if let Some((hold, ending)) = self.registry.lost(&loss.key, loss.token, loss.reason) {
            let (name, reason) = (self.names.name_of(loss.key.as_str()), ending.reason());
            tracing::warn!(name, token = %loss.token, reason, "a hold was lost");
            self.told_end(&hold, ending);
        }
    }

    /// Takes a lock away from its holders, of this service or not.
    ///
    /// # Errors
    ///
    /// As [`force_release`](latchwork::LockManager::force_release).
    pub(crate) async fn force_release(
        &self,
        name: &str,
        key: &Key,
    ) -> Result<ForceReleased, Error> {
        let forcing = self.registry.forcing(key);
        let done = self.locks.force_release(name).await;
        // The library has ended those that the store evicted, also where not all of them could be. The store may
        // have granted the lock again meanwhile, even to a client of this service.
        for (hold, ending) in self.registry.evicted(key) {
            self.told_end(&hold, ending);
        }
        drop(forcing);
        done
    }

    /// Releases a hold, or ends its task with success; tells a repeat what the first request did.
    ///
    /// # Errors
    ///
    /// As [`give_up`](crate::domain::holds::registry::Registry::give_up); `Unreachable` while the store does not answer.
    pub(crate) async fn give_up(
        self: &Arc<Self>,
        id: HoldId,
        caller: &Caller,
        asked: How,
    ) -> Result<Confirmed, ApiError> {
        let (how, name, told) = match self.registry.give_up(id, &caller.principal.name, asked)? {
            GivenUp::Confirmed(confirmed) => return Ok(confirmed),
            GivenUp::Before { how, name, told } => (how, name, told),
            GivenUp::Now { hold, teller, told } => {
                self.told_end(&hold, Ending::Left(asked, Said::Nothing));
                let name = Arc::from(hold.name(&self.names));
                // It goes on if the client has gone.
                spawn(self.clone().end(id, hold, asked, Arc::clone(&name), teller));
                (asked, name, told)
            }
        };
        answer(asked, how, told.said().await?, &name)
    }

    /// Asks the store until it answers, and keeps what it says.
    async fn end(
        self: Arc<Self>,
        id: HoldId,
        hold: Box<Hold>,
        how: How,
        name: Arc<str>,
        teller: Teller,
    ) {
        let failed = |error: &Error| {
            let refused = ApiError::of(error, Some(&name));
            teller.failed(refused.next_step(
                "repeat this request: the service asks the store until the lease is over, and tells what it says",
            ));
        };
        let said = match hold.held.end(how, failed).await {
            Ok(()) => Said::Held,
            Err(error) => match (error.kind(), error.lost()) {
                (_, Some(lost)) => Said::Lost(lost.reason.word()),
                (ErrorKind::Lost, None) => Said::Lost("taken"),
                _ => {
                    tracing::warn!(name = ?name, %error, "a release was not confirmed");
                    Said::Unknown
                }
            },
        };
        self.registry.settled(id, how, said);
        teller.done(said);
    }

    /// Tells listeners that a hold has ended.
    pub(crate) fn told_end(&self, hold: &Hold, ending: Ending) {
        for (key, token) in hold.held.locks() {
            let word = if let Ending::Left(..) = ending { "released" } else { "lost" };
            let mut event = EventView::new(word, self.names.name_of(key.as_str()));
            event.token = Some(token.to_string());
            event.reason = ending.reason();
            event.lasted_ms = Some(millis(self.clock.now().since(hold.since)));
            self.others.not_ours(key, token, self.clock.now());
            self.hub.tell(event);
        }
    }
}
