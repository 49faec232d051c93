//! Adopts a hold that another process has detached.

use latchwork_store::validity;
use latchwork_store::{Claim, Error, ErrorKind, Lost, LostReason, Order, Renewal, Stamp};

use crate::hold::detach::{Renewed, renew, unsupported};
use crate::hold::guard::Guard;
use crate::hold::lease::{Granted, Lease};
use crate::hold::ticket::Ticket;
use crate::locks::manager::LockManager;
use crate::rules::observe::Event;
use crate::rules::token_base;

impl LockManager {
    /// Adopts a hold that another process has [detached](Guard::detach), with the same key and
    /// token.
    ///
    /// The key is that of the ticket, whatever the namespace of this manager. Options such as
    /// `max_hold` and the observer are those of this manager.
    ///
    /// Adopt a ticket once. Two processes that adopt the same ticket would both hold the lock.
    ///
    /// # Errors
    ///
    /// `Invalid` for a text that is not a ticket, and for a manager whose `token_floor` differs
    /// from that of the first. `Lost` if the lock is no longer held, because the ttl had ended or
    /// the lock was released by force. `Unsupported` and `Unreachable` as for [`Guard::detach`];
    /// after `Unreachable` it may be tried again.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the lock as it was: held until its ttl is over.
    pub async fn adopt(&self, ticket: &str) -> Result<Guard, Error> {
        let engine = self.engine();
        let Some(ticket) = Ticket::read(ticket) else {
            return Err(Error::new(ErrorKind::Invalid, "adopt: this text is not a ticket")
                .store(engine.capabilities.store.clone())
                .next_step("pass on what Guard::detach returned, unchanged"));
        };
        let key = ticket.key.clone();
        engine.check_open(Some(&key))?;
        if !engine.backend.renews_for_others() {
            return Err(unsupported(engine).key(&key));
        }
        let rules = self.plan()?.rules;
        let stamp = Stamp::new(engine.io.now());
        let claim = Claim::new(key.clone(), ticket.id, ticket.mode, ticket.ttl, stamp).with(|it| {
            it.order = if engine.capabilities.fifo { Order::Fifo } else { Order::Barging };
            it.holder = ticket.holder.clone();
            it.waits = false;
        });
        let Renewed { sent, answer } = renew(engine, &claim, &rules).await?;
        let not_held = || {
            let lost = Lost::new(LostReason::Taken, engine.io.now());
            let message = "adopt: the lock is no longer held";
            Error::new(ErrorKind::Lost, message)
                .with_lost(lost)
                .key(&key)
                .store(engine.capabilities.store.clone())
                .next_step("adopt a ticket within its ttl, or acquire the lock again")
        };
        let Renewal::Held { ttl, token, store_time } = answer else { return Err(not_held()) };
        let ttl = ttl.saturating_sub(claim.holder.room_for_delay());
        let first = rules.token(token);
        let first = first.ok_or_else(|| token_base::no_room(&key, &engine.capabilities))?;
        if first.handed_over(ticket.token.handovers()) != Some(ticket.token) {
            return Err(self.another_token(&ticket));
        }
        let valid_until = validity::valid_until(sent.at, ttl);
        let granted = Granted { token: first, ttl, valid_until, sent, store_time };
        let lease = Lease::new(claim, granted, rules.clone(), engine.io.clock().as_ref());
        let watched = engine.watchdog.watch(lease);
        let guard = Guard::new(engine.clone(), watched, ticket.token.handovers());
        rules.tell(&Event::Adopted { key: &key, token: guard.token() });
        // A guard that is dropped tells of its release.
        engine.check_open(Some(&key))?;
        Ok(guard)
    }

    /// The hold goes on until its ttl is over.
    fn another_token(&self, ticket: &Ticket) -> Error {
        let message = format!(
            "adopt: the ticket's token {} is not the one that the lock has here: this manager has another \
             token_floor, or the ticket was changed",
            ticket.token
        );
        Error::new(ErrorKind::Invalid, message)
            .key(&ticket.key)
            .store(self.engine().capabilities.store.clone())
            .next_step("give both managers the same token_floor, and pass the ticket on unchanged")
    }
}
