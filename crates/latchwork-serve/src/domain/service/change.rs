//! Upgrades and downgrades of holds.

use std::sync::Arc;
use std::time::Duration;

use latchwork::{Error, ErrorKind, Exchange, Guard, Unwatched};
use latchwork_store::{Key, Snapshot};

use super::Service;
use super::tickets::Asked;
use crate::domain::access::caller::Caller;
use crate::domain::access::principal::Right;
use crate::domain::events::event::LockEvent;
use crate::domain::events::observer::WAITER;
use crate::domain::holds::change::{Change, Changed, Changing, prepare};
use crate::domain::holds::ended::Ending;
use crate::domain::holds::hold_status::HoldStatus;
use crate::domain::holds::id::HoldId;
use crate::domain::holds::origin::Origin;
use crate::domain::holds::registry::Registry;
use crate::domain::holds::seal::Purpose;
use crate::domain::holds::ticket::Ticket;
use crate::domain::holds::tickets::Confirmed;
use crate::domain::refusal::{Kind, Refusal};
use crate::domain::store_claims::StoreClaim;
use crate::domain::wish::check_wait;
use crate::time::pause;

/// A guard for the time of a change. If that fails, the hold is the client's as before.
struct Lent<'a> {
    guard: Option<Guard>,
    registry: &'a Registry,
    ticket: &'a Ticket,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.registry.lend(self.ticket, false);
        if let Some(guard) = self.guard.take() {
            Unwatched::leave(guard);
        }
    }
}

/// How long after its grant an instance releases the hold that was replaced, if it was not killed.
const EXCHANGED_WITHIN: Duration = Duration::from_millis(500);

impl Service {
    /// Upgrades or downgrades a hold, and renews it when its request comes and at the end. A hold that has the mode
    /// is shown as it is, so that a repeat learns the token. Dropping the future withdraws the change.
    ///
    /// # Errors
    ///
    /// Those of a hold that has ended, and those of an acquire; after the latter, the hold is as before.
    pub(crate) async fn change(
        &self,
        text: &str,
        caller: &Caller,
        change: Change,
    ) -> Result<HoldStatus, Refusal> {
        caller.principal.check_right(Right::Lock)?;
        let _reservation = self.registry.enter(&caller.principal.name, 1, 0)?;
        match self.open(text, caller)? {
            Asked::Kept(id) => self.change_kept(id, caller, change).await,
            Asked::Ticket(ticket) => self.change_ticket(text, &ticket, caller, change).await,
        }
    }

    /// The same for a hold that its client keeps. A change gives it a new id; a repeat with the old one shows the hold,
    /// if this instance has changed it.
    async fn change_ticket(
        &self,
        text: &str,
        ticket: &Ticket,
        caller: &Caller,
        change: Change,
    ) -> Result<HoldStatus, Refusal> {
        let ended = self.registry.ended(ticket.id(), &ticket.owner);
        if let Some(text) = ended.and_then(|ended| ended.successor)
            && let Asked::Ticket(next) = self.open(&text, caller)?
            && next.locks.iter().all(|lock| lock.mode() == change.mode())
        {
            let status = self.renew_ticket(&next, caller).await?;
            return Ok(HoldStatus { id: text.into(), ..status });
        }
        let before = match self.renew_ticket(ticket, caller).await {
            Ok(before) => before,
            Err(refusal) => return self.changed_elsewhere(ticket, caller, change, refusal).await,
        };
        let name = self.name_of(ticket);
        let ([lock], None) = (&ticket.locks[..], &ticket.period) else {
            let message = "hold: it has several locks, or is a task";
            return Err(Refusal::invalid(message, change.fitting()).key(name));
        };
        if lock.mode() == change.mode() {
            return Ok(HoldStatus { id: text.to_owned(), ..before });
        }
        if let Some(next) = self.granted_elsewhere(lock, &ticket.owner, change).await? {
            return self.take_over(ticket, &next, caller).await;
        }
        // The claim that replaces it names it, so that any instance can tell a repeat the new id.
        let watched = self.named_after(lock, &ticket.owner).watch(&self.locks).await;
        let guard = match watched {
            Ok(guard) => guard,
            Err(error) => {
                let lost = Ending::Lost("taken").refusal(&name);
                if error.kind() == ErrorKind::Lost
                    && let Ok(changed) = self.changed_elsewhere(ticket, caller, change, lost).await
                {
                    return Ok(changed);
                }
                return Err(self.not_renewed(ticket, &error));
            }
        };
        // The guard renews while it waits, and so not for longer than the hold may last.
        let change = match (change, ticket.max_left(self.clock.wall())) {
            (Change::Upgrade { wait }, Some(left)) => Change::Upgrade { wait: wait.min(left) },
            (change, _) => change,
        };
        let preparing = prepare(&guard, change);
        self.registry.lend(ticket, true);
        let mut lent = Lent { guard: Some(guard), registry: &self.registry, ticket };
        let (holder, ttl) = (lock.holder().text.clone(), ticket.ttl);
        let changing = Changing { name, holder, ttl, preparing };
        let (name, holder, prepared) = self.prepared(changing, caller, change).await?;
        let exchange = match prepared {
            Ok(exchange) => exchange,
            Err(error) => {
                drop(lent);
                return Err(self.not_changed(ticket, change, &name, &error).await);
            }
        };
        let guard = lent.guard.take().ok_or_else(Refusal::no_hold)?;
        let changed = self.exchanged(ticket, guard, exchange, caller).await?;
        Ok(self.publish_change(changed, name, &holder, ttl, change).await)
    }

    /// The same hold, whose next claim says which one it replaces.
    fn named_after(&self, lock: &Unwatched, owner: &Arc<str>) -> Unwatched {
        let (origin, was) = (Origin::read(lock.holder()), Some(lock.id()));
        let session = origin.and_then(|origin| origin.session);
        let origin = Origin { owner: owner.clone(), session, was }.write();
        let holder = lock.holder().clone().with(|it| it.origin = Some(origin.into()));
        Unwatched::new(lock.key().clone(), lock.id(), lock.mode(), lock.token(), lock.ttl(), holder)
    }

    /// The hold of a ticket that the store does not have: if another instance has changed it so, and its answer was lost,
    /// the hold goes on under a new id.
    async fn changed_elsewhere(
        &self,
        ticket: &Ticket,
        caller: &Caller,
        change: Change,
        refusal: Refusal,
    ) -> Result<HoldStatus, Refusal> {
        let ([lock], Kind::Lost) = (&ticket.locks[..], refusal.kind) else { return Err(refusal) };
        let seen = self.inspect(lock.key()).await?;
        let Some(claim) = next_of(lock, &seen, &ticket.owner, change) else { return Err(refusal) };
        self.take_over(ticket, &claim, caller).await
    }

    /// Goes on with the claim that has replaced a hold.
    async fn take_over(
        &self,
        ticket: &Ticket,
        claim: &StoreClaim,
        caller: &Caller,
    ) -> Result<HoldStatus, Refusal> {
        let (locks, since) = (vec![claim.hold(ticket.lease())], self.clock.wall());
        let next = Ticket { locks, since, ..ticket.clone() };
        let text = self.seals.seal(Purpose::Hold, &next).ok_or_else(Refusal::no_hold)?;
        let status = self.renew_ticket(&next, caller).await?;
        self.registry.replace_in_session(ticket, &next);
        Ok(HoldStatus { id: text, ..status })
    }

    /// The claim by which another instance has changed the hold so, for a request whose answer was lost. It releases the
    /// hold right after the grant. If it was killed in between, what it was granted is nobody's, and is released here.
    async fn granted_elsewhere(
        &self,
        lock: &Unwatched,
        owner: &Arc<str>,
        change: Change,
    ) -> Result<Option<StoreClaim>, Refusal> {
        let (mut start, mut seen_before) = (self.clock.now(), None);
        loop {
            let seen = self.inspect(lock.key()).await?;
            let Some(next) = next_of(lock, &seen, owner, change) else {
                if !is_waited_for(lock, &seen, owner) {
                    return Ok(None);
                }
                if self.clock.now().since(start) >= EXCHANGED_WITHIN {
                    let message = "hold: an earlier request for this change still waits";
                    return Err(Refusal::new(Kind::TimedOut, message)
                        .key(self.names.name_of(lock.key().as_str()))
                        .with_next_step("renew the hold, and repeat this request within its ttl"));
                }
                pause(EXCHANGED_WITHIN / 10).await;
                continue;
            };
            // A repeat through a third instance may have been granted it meanwhile.
            if seen_before.replace(next.id) != Some(next.id) {
                start = self.clock.now();
            }
            if seen.holders.iter().all(|party| party.id != Some(lock.id())) {
                return Ok(Some(next));
            }
            if self.clock.now().since(start) >= EXCHANGED_WITHIN {
                let held = next.age.unwrap_or_default();
                let released = next.hold(lock.ttl()).release(&self.locks, held, |_| ()).await;
                return match released {
                    Err(error) if error.kind() != ErrorKind::Lost => {
                        Err(Refusal::of(&error, Some(&self.names.name_of(lock.key().as_str()))))
                    }
                    _ => Ok(None),
                };
            }
            pause(EXCHANGED_WITHIN / 10).await;
        }
    }

    async fn inspect(&self, key: &Key) -> Result<Snapshot, Refusal> {
        let name = self.names.name_of(key.as_str());
        self.locks.inspect(&*name).await.map_err(|error| Refusal::of(&error, Some(&name)))
    }

    /// The refusal of a change of a hold that its client keeps.
    async fn not_changed(
        &self,
        ticket: &Ticket,
        change: Change,
        name: &str,
        error: &Error,
    ) -> Refusal {
        let refusal = Refusal::of(error, Some(name));
        match error.kind() {
            ErrorKind::Lost => self.not_renewed(ticket, error),
            ErrorKind::Invalid => refusal.with_next_step(change.fitting()),
            _ => self.with_lock(refusal, name, error).await,
        }
    }

    /// Goes on with what the store has granted in place of the hold.
    async fn exchanged(
        &self,
        ticket: &Ticket,
        mut guard: Guard,
        exchange: Exchange,
        caller: &Caller,
    ) -> Result<Changed, Refusal> {
        let settled = match guard.exchange(exchange) {
            Ok(settled) => settled,
            Err(error) => return Err(self.not_renewed(ticket, &error)),
        };
        let taken = Unwatched::of(guard).await;
        let (lock, until) = taken.map_err(|error| self.not_renewed(ticket, &error))?;
        let (key, token) = (lock.key().clone(), lock.token());
        let from = ticket.tokens().next().map_or(token, |(_, token)| token);
        let (locks, since) = (vec![lock], self.clock.wall());
        let next = Ticket { locks, since, period: None, ..ticket.clone() };
        let until = self.lengthened(&next, until).await;
        let until = until.map_err(|error| self.not_renewed(ticket, &error))?;
        // The end of the session may have released the hold as it was before.
        if let Err(refusal) = self.check_session_of(&next).await {
            self.abandon(next);
            return Err(refusal);
        }
        let replaced =
            self.seals.seal(Purpose::Hold, &next).ok_or_else(Refusal::no_hold).and_then(|text| {
                let (hold, lasted) = self.registry.replace(ticket, &text)?;
                if let Some(hold) = hold {
                    self.ends_here(&hold, None);
                }
                self.registry.replace_in_session(ticket, &next);
                let Confirmed { status, .. } =
                    self.registry.confirm(&next, until, caller.arrival, true)?;
                Ok((lasted, HoldStatus { id: text, ..status }))
            });
        match replaced {
            Ok((lasted, status)) => {
                Ok(Changed { key, from, token, lasted, status, settled: Box::pin(settled) })
            }
            Err(refusal) => {
                self.abandon(next);
                Err(refusal)
            }
        }
    }

    async fn change_kept(
        &self,
        id: HoldId,
        caller: &Caller,
        change: Change,
    ) -> Result<HoldStatus, Refusal> {
        let owner = &caller.principal.name;
        let before = self.registry.look(id, owner, caller.arrival, true, false)?;
        let Some(changing) = self.registry.begin_change(id, owner, change)? else {
            return Ok(before);
        };
        let ttl = changing.ttl;
        let (name, holder, prepared) = self.prepared(changing, caller, change).await?;
        let exchange = match prepared {
            Ok(exchange) => exchange,
            Err(error) => return self.unchanged(id, caller, change, &name, &error).await,
        };
        let changed = self.registry.exchange(id, owner, exchange, caller.arrival)?;
        let status = self.publish_change(changed, name, &holder, ttl, change).await;
        // The loop that ends holds does not find one that was lost before its token was entered.
        if let Some((hold, ending)) = self.registry.lost_already(id) {
            self.publish_end(&hold, ending);
        }
        Ok(status)
    }

    /// Waits for a change.
    async fn prepared(
        &self,
        changing: Changing,
        caller: &Caller,
        change: Change,
    ) -> Result<(String, Arc<str>, Result<Exchange, Error>), Refusal> {
        let Changing { name, holder, ttl, preparing } = changing;
        let mut place = None;
        if let Change::Upgrade { wait } = change {
            check_wait(wait, ttl)?;
            let locks = [(&*name, change.mode().word())].into_iter();
            place =
                (!wait.is_zero()).then(|| self.queue.enter(locks, &holder, None, self.clock.now()));
        }
        let mut stopping = self.stopping.subscribe();
        let prepared = tokio::select! {
            prepared = WAITER.scope(holder.clone(), preparing) => prepared,
            _ = stopping.wait_for(|it| *it) => return Err(Refusal::closed()),
            () = self.access.revoked(caller) => return Err(Refusal::unknown_token()),
        };
        drop(place);
        Ok((name, holder, prepared))
    }

    /// Publishes a change. Returns when the store has released the hold before, so that the answer leaves nothing of it.
    async fn publish_change(
        &self,
        changed: Changed,
        name: String,
        holder: &str,
        ttl: Duration,
        change: Change,
    ) -> HoldStatus {
        let Changed { key, from, token, lasted, status, settled } = changed;
        self.store_watch.add_own(&key, token);
        self.hub.publish(LockEvent {
            mode: Some(change.mode().word()),
            token: Some(token),
            holder: Some(holder.to_owned()),
            ttl: Some(ttl),
            ..LockEvent::new("granted", &*name)
        });
        self.store_watch.remove_own(&key, from);
        let released = LockEvent::new("released", name);
        self.hub.publish(LockEvent { token: Some(from), lasted: Some(lasted), ..released });
        settled.await;
        status
    }

    /// Adds the lock as it is now to the refusal of a change that others were in the way of.
    async fn with_lock(&self, refusal: Refusal, name: &str, error: &Error) -> Refusal {
        match error.kind() {
            ErrorKind::TimedOut | ErrorKind::UpgradeConflict => {
                match self.lock_lists.one(name).await {
                    Ok(lock) => refusal.lock(lock),
                    Err(_) => refusal,
                }
            }
            _ => refusal,
        }
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
        let owner = &caller.principal.name;
        let now = self.registry.look(id, owner, caller.arrival, false, false)?;
        let refusal = Refusal::of(error, Some(name));
        match error.kind() {
            ErrorKind::Invalid => match self.registry.begin_change(id, owner, change)? {
                None => Ok(now),
                Some(_) => Err(refusal.with_next_step(change.fitting())),
            },
            _ => Err(self.with_lock(refusal, name, error).await),
        }
    }
}

/// The claim that the store has granted in place of a hold, by such a change.
fn next_of(
    lock: &Unwatched,
    seen: &Snapshot,
    owner: &Arc<str>,
    change: Change,
) -> Option<StoreClaim> {
    let claims = seen.holders.iter().filter_map(|party| StoreClaim::of(lock.key(), party));
    let mut next = claims.filter(|it| it.origin.was == Some(lock.id()) && it.id != lock.id());
    next.find(|it| it.origin.owner == *owner && it.mode == change.mode())
}

/// Whether an earlier request for a change of a hold waits at the store.
fn is_waited_for(lock: &Unwatched, seen: &Snapshot, owner: &Arc<str>) -> bool {
    let origins = seen.waiters.iter().filter_map(|party| Origin::read(&party.holder));
    origins.into_iter().any(|origin| origin.was == Some(lock.id()) && origin.owner == *owner)
}
