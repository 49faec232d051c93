//! Upgrades and downgrades of holds.

use latchwork::{Error, ErrorKind};

use super::Service;
use crate::domain::access::caller::Caller;
use crate::domain::access::principal::Right;
use crate::domain::events::event::LockEvent;
use crate::domain::holds::change::{Change, Changed, Changing};
use crate::domain::holds::hold_status::HoldStatus;
use crate::domain::holds::id::HoldId;
use crate::domain::refusal::Refusal;
use crate::domain::wish::check_wait;

impl Service {
    /// Upgrades or downgrades a hold, and renews it when its request comes and at the end. A hold that has the mode
    /// is shown as it is, so that a repeat learns the token. Dropping the future withdraws the change.
    ///
    /// # Errors
    ///
    /// Those of a hold that has ended, and those of an acquire; after the latter, the hold is as before.
    pub(crate) async fn change(
        &self,
        id: HoldId,
        caller: &Caller,
        change: Change,
    ) -> Result<HoldStatus, Refusal> {
        caller.principal.check_right(Right::Lock)?;
        let owner = &caller.principal.name;
        let _reservation = self.registry.enter(owner, 1, 0)?;
        let before = self.registry.look(id, owner, caller.arrival, true)?;
        let Some(Changing { name, holder, ttl, preparing }) =
            self.registry.begin_change(id, owner, change)?
        else {
            return Ok(before);
        };
        let mut place = None;
        if let Change::Upgrade { wait } = change {
            check_wait(wait, ttl)?;
            let locks = [(&*name, change.mode().word())].into_iter();
            place =
                (!wait.is_zero()).then(|| self.queue.enter(locks, &holder, None, self.clock.now()));
        }
        let mut stopping = self.stopping.subscribe();
        let prepared = tokio::select! {
            prepared = preparing => prepared,
            _ = stopping.wait_for(|it| *it) => return Err(Refusal::closed()),
            () = self.access.revoked(caller) => return Err(Refusal::unknown_token()),
        };
        drop(place);
        let exchange = match prepared {
            Ok(exchange) => exchange,
            Err(error) => return self.unchanged(id, caller, change, &name, &error).await,
        };
        let changed = self.registry.exchange(id, owner, exchange, caller.arrival)?;
        let Changed { key, from, token, lasted, status, settled } = changed;
        self.store_watch.add_own(&key, token);
        self.hub.publish(LockEvent {
            mode: Some(change.mode().word()),
            token: Some(token),
            holder: Some(holder.to_string()),
            ttl: Some(ttl),
            ..LockEvent::new("granted", &*name)
        });
        self.store_watch.remove_own(&key, from);
        let released = LockEvent::new("released", name);
        self.hub.publish(LockEvent { token: Some(from), lasted: Some(lasted), ..released });
        // The loop that ends holds does not find one that was lost before its token was entered.
        if let Some((hold, ending)) = self.registry.lost_already(id) {
            self.publish_end(&hold, ending);
        }
        if change == Change::Downgrade {
            // Other readers are admitted then.
            settled.await;
        }
        Ok(status)
    }

    /// The answer of a change that the library refuses.
    async fn unchanged(
        &self,
        id: HoldId,
        caller: &Caller,
        change: Change,
        name: &str,
        error: &Error,
    ) -> Result<HoldStatus, Refusal> {
        // It has ended, or another request has changed it meanwhile.
        let now = self.look(id, caller, false)?;
        let refusal = Refusal::of(error, Some(name));
        match error.kind() {
            ErrorKind::Invalid => {
                let owner = &caller.principal.name;
                match self.registry.begin_change(id, owner, change)? {
                    None => Ok(now),
                    Some(_) => Err(refusal.with_next_step(change.fitting())),
                }
            }
            ErrorKind::TimedOut | ErrorKind::UpgradeConflict => {
                Err(match self.lock_lists.one(name).await {
                    Ok(lock) => refusal.lock(lock),
                    Err(_) => refusal,
                })
            }
            _ => Err(refusal),
        }
    }
}
