//! Adopts a hold that another process has detached.

use std::time::Duration;

use latchwork_store::validity;
use latchwork_store::{Error, ErrorKind, Key, Lost, LostReason, Query, Renewal};

use crate::hold::detach::{DatedRenewal, adopted, renew, unsupported};
use crate::hold::guard::Guard;
use crate::hold::lease::{Granted, Lease};
use crate::hold::ticket::Ticket;
use crate::locks::manager::LockManager;
use crate::rules::observe::Event;
use crate::rules::token_base;

/// In which steps stores say how long a hold lasts, at the most.
const GRAIN: Duration = Duration::from_secs(1);

/// A store may grant so much of the ttl beyond it.
const SPARE: u32 = 10;

impl LockManager {
    /// Adopts a hold that another process has [detached](Guard::detach), with the same key and
    /// token.
    ///
    /// The key is that of the ticket, whatever the namespace of this manager. Options such as
    /// `max_hold` and the observer are those of this manager.
    ///
    /// Adopt a ticket once. Two processes that adopt the same ticket would both hold the lock. A ticket
    /// from before a later [`detach`](Guard::detach) of the same hold is refused, but on Redis, etcd and Redlock, which
    /// do not keep their number.
    ///
    /// # Errors
    ///
    /// `Invalid` for a text that is not a ticket, for one that does not fit what the store says of
    /// the lock, and for a manager whose `token_floor` differs from that of the first. `Lost` if
    /// the lock is no longer held, because the ttl had ended or the lock was released by force, and for a
    /// ticket that was replaced by a later one. `Unsupported` and `Unreachable` as for [`Guard::detach`];
    /// after `Unreachable` it may be tried again.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the lock as it was: held until its ttl is over.
    pub async fn adopt(&self, ticket: &str) -> Result<Guard, Error> {
        let engine = self.engine();
        let Some(ticket) = Ticket::read(ticket) else {
            return Err(Error::new(ErrorKind::Invalid, "adopt: this text is not a ticket")
                .with_store(engine.capabilities.store.clone())
                .with_next_step("pass on what Guard::detach returned, unchanged"));
        };
        let key = ticket.key.clone();
        engine.check_open(Some(&key))?;
        if !engine.backend.renews_for_others() {
            return Err(unsupported(engine).with_key(&key));
        }
        let limit = self.plan()?.rules.op_timeout(ticket.ttl);
        self.check(&ticket, limit).await?;
        let not_held = || self.not_held(&key, "adopt: the lock is no longer held");
        let guard = self.resume(&ticket, false, not_held).await?;
        guard.hold().0.lease.rules.tell(&Event::Adopted { key: &key, token: guard.token() });
        // A guard that is dropped tells of its release.
        engine.check_open(Some(&key))?;
        Ok(guard)
    }

    /// Goes on with the hold of a ticket, which is renewed first. `is_lent` if its owner may renew it elsewhere meanwhile.
    /// `not_held` is the error if the store does not have it.
    pub(crate) async fn resume(
        &self,
        ticket: &Ticket,
        is_lent: bool,
        not_held: impl Fn() -> Error,
    ) -> Result<Guard, Error> {
        let (engine, rules, key) = (self.engine(), self.plan()?.rules, &ticket.key);
        let claim = adopted(engine, &rules, ticket.claim(engine), ticket.token);
        let DatedRenewal { sent, answer } = renew(engine, &claim, &rules).await?;
        let Renewal::Held { ttl, token, store_time, .. } = answer else { return Err(not_held()) };
        let first = rules.token(token);
        let first = first.ok_or_else(|| token_base::no_room(key, &engine.capabilities))?;
        if first.handed_over(ticket.token.handovers()) != Some(ticket.token) {
            return Err(self.another_token(ticket));
        }
        let valid_until = validity::valid_until(sent.at, ttl);
        let granted = Granted { token: first, ttl, valid_until, sent, store_time };
        let mut lease = Lease::new(claim, granted, rules.clone(), engine.io.clock().as_ref());
        lease.is_lent = is_lent;
        let watched = engine.watchdog.watch(lease);
        Ok(Guard::new(engine.clone(), watched, ticket.token.handovers()))
    }

    /// Compares a ticket with the store and its lock: a ticket that was changed gives no hold. Changes nothing.
    async fn check(&self, ticket: &Ticket, limit: Duration) -> Result<(), Error> {
        let engine = self.engine();
        let differs = |field: &str| {
            let message = format!("adopt: the ticket's {field}: the ticket was changed");
            Error::new(ErrorKind::Invalid, message)
                .with_key(&ticket.key)
                .with_store(engine.capabilities.store.clone())
                .with_next_step("pass on what Guard::detach returned, unchanged")
        };
        if !engine.capabilities.ttl.contains(&ticket.ttl) {
            let (least, most) = (engine.capabilities.ttl.start(), engine.capabilities.ttl.end());
            let ttl = ticket.ttl;
            return Err(differs(&format!(
                "ttl, {ttl:?}, is outside what this store grants, {least:?} to {most:?}"
            )));
        }
        let query = Query::Key(ticket.key.clone());
        let asked = async { engine.backend.inspect(&query).await };
        let answer = engine.native(engine.io.answer(limit, asked)).await;
        let answer = answer.map(|answer| answer.map_err(|e| engine.seen(e, Some(&ticket.key))));
        let seen = engine.told(answer, Some(&ticket.key))?;
        let mut holders = seen.iter().flat_map(|snapshot| &snapshot.holders);
        let Some(party) = holders.find(|party| party.id == Some(ticket.id)) else {
            return Err(self.not_held(&ticket.key, "adopt: the lock is no longer held"));
        };
        // The limit of permits may have been changed since.
        if party.mode.with_limit(0) != ticket.mode.with_limit(0) {
            let (mode, theirs) = (ticket.mode.word(), party.mode.word());
            return Err(differs(&format!("mode, {mode}, is not that of the lock, {theirs}")));
        }
        // A store may keep the start of a long text.
        let kept = &party.holder;
        let is_same = ticket.holder.text.starts_with(&*kept.text)
            && ticket.holder.candidate == kept.candidate;
        if !is_same {
            return Err(differs(&format!(
                "holder, {:?}, is not that of the lock, {:?}",
                ticket.holder.shown(),
                kept.shown()
            )));
        }
        // A store says the remaining time with the lock delay, in steps of its own, rounded up.
        let whole = ticket.ttl.saturating_add(kept.room_for_delay()).saturating_add(GRAIN);
        let whole = whole.saturating_add(whole / SPARE);
        if let Some(left) = party.remaining.filter(|left| *left > whole) {
            return Err(differs(&format!(
                "ttl, {:?}, is less than the lock has left, {left:?}",
                ticket.ttl
            )));
        }
        if kept.detached > ticket.holder.detached {
            let message =
                "adopt: the lock was adopted and detached again since this ticket was made";
            return Err(self.not_held(&ticket.key, message));
        }
        Ok(())
    }

    fn not_held(&self, key: &Key, message: &str) -> Error {
        let engine = self.engine();
        Error::new(ErrorKind::Lost, message)
            .with_lost(Lost::new(LostReason::Taken, engine.io.now()))
            .with_key(key)
            .with_store(engine.capabilities.store.clone())
            .with_next_step("adopt the latest ticket within its ttl, or acquire the lock again")
    }

    /// The hold goes on until its ttl is over.
    fn another_token(&self, ticket: &Ticket) -> Error {
        let message = format!(
            "adopt: the ticket's token {} is not the one that the lock has here: this manager has another \
             token_floor, or the ticket was changed",
            ticket.token
        );
        Error::new(ErrorKind::Invalid, message)
            .with_key(&ticket.key)
            .with_store(self.engine().capabilities.store.clone())
            .with_next_step(
                "give both managers the same token_floor, and pass the ticket on unchanged",
            )
    }
}
