//! Upgrades and downgrades of holds.

use std::pin::Pin;
use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use latchwork::{Error, ErrorKind, Exchange, FencingToken, Guard, Unwatched};
use latchwork_store::{Key, Mode, Snapshot};

use super::Service;
use super::tickets::Asked;
use crate::domain::access::caller::Caller;
use crate::domain::access::principal::Right;
use crate::domain::events::event::LockEvent;
use crate::domain::events::observer::WAITER;
use crate::domain::holds::change::{Change, Changed, Changing, prepare};
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

/// A hold that is to be changed, as the store has it.
enum Current {
    Held(HoldStatus),
    /// An earlier request has changed it so.
    Changed(HoldStatus),
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
        let before = match self.current(ticket, caller, change, None).await? {
            Current::Held(before) => before,
            Current::Changed(changed) => return Ok(changed),
        };
        let name = self.name_of(ticket);
        let ([lock], None) = (&ticket.locks[..], &ticket.period) else {
            let message = "hold: it has several locks, or is a task";
            return Err(Refusal::invalid(message, change.fitting()).key(name));
        };
        if lock.mode() == change.mode() {
            return Ok(HoldStatus { id: text.to_owned(), ..before });
        }
        check_wait(change.wait(), ticket.ttl)?;
        // The claim that replaces it names it, so that any instance can tell a repeat the new id.
        let guard = match self.named_after(lock, &ticket.owner).watch(&self.locks).await {
            Ok(guard) => guard,
            Err(error) => return self.not_changed(ticket, caller, change, None, &error).await,
        };
        self.registry.lend(ticket, true);
        let mut lent = Lent { guard: Some(guard), registry: &self.registry, ticket };
        // The guard renews while it waits, and so not for longer than the hold may last.
        let left = ticket.max_left(self.clock.wall());
        let until = self.clock.now().plus(change.wait().min(left.unwrap_or(Duration::MAX)));
        let exchange = loop {
            let change = change.with_wait(until.since(self.clock.now()));
            if let Some(next) = self.awaited_elsewhere(lock, caller, change).await? {
                drop(lent);
                return self.take_over(ticket, &next, caller).await;
            }
            let guard = lent.guard.as_ref().ok_or_else(Refusal::no_hold)?;
            let (holder, ttl) = (lock.holder().text.clone(), ticket.ttl);
            let preparing = prepare(guard, change);
            let changing = Changing { name: name.clone(), holder, ttl, preparing };
            let (_, _, prepared) = self.prepared(changing, caller, change).await?;
            match prepared {
                Ok(exchange) if self.is_second(lock, &ticket.owner, change, &exchange).await? => {}
                Ok(exchange) => break exchange,
                Err(error) => {
                    let is_late = self.clock.now() >= until.plus(EXCHANGED_WITHIN * 2);
                    if is_late || !self.is_overtaken(lock, &ticket.owner, change, &error).await {
                        drop(lent);
                        return self.not_changed(ticket, caller, change, None, &error).await;
                    }
                }
            }
        };
        // Its end releases all that it finds: what was granted before this answer is among that.
        self.check_session_of(ticket).await?;
        let guard = lent.guard.take().ok_or_else(Refusal::no_hold)?;
        let own = Some(exchange.token());
        let changed = match self.exchanged(ticket, guard, exchange, caller).await {
            Ok(changed) => changed?,
            Err(error) => {
                drop(lent);
                return self.not_changed(ticket, caller, change, own, &error).await;
            }
        };
        let holder = &lock.holder().text;
        let changed = self.publish_change(changed, name, holder, ticket.ttl, change).await;
        match self.open(&changed.id, caller)? {
            // While the store had both, a repeat at another instance may have released the new one as nobody's.
            Asked::Ticket(next) if self.outlived() => {
                let status = self.renew_ticket(&next, caller).await?;
                Ok(HoldStatus { id: changed.id, ..status })
            }
            _ => Ok(changed),
        }
    }

    /// Renews a hold that is to be changed, or goes on with the one by which another request has changed it so. What this
    /// request was granted is `withdrawn`.
    async fn current(
        &self,
        ticket: &Ticket,
        caller: &Caller,
        change: Change,
        withdrawn: Option<FencingToken>,
    ) -> Result<Current, Refusal> {
        let ended = self.registry.ended(ticket.id(), &ticket.owner);
        if let Some(text) = ended.and_then(|ended| ended.successor)
            && let Asked::Ticket(next) = self.open(&text, caller)?
            && next.locks.iter().all(|lock| lock.mode() == change.mode())
        {
            let status = self.renew_ticket(&next, caller).await?;
            return Ok(Current::Changed(HoldStatus { id: text.into(), ..status }));
        }
        let lost = match self.renew_at_store(ticket, caller).await {
            Ok(Ok(status)) => return Ok(Current::Held(status)),
            Ok(Err(error)) if error.kind() == ErrorKind::Lost => Ok(error),
            Ok(Err(error)) => return Err(self.not_renewed(ticket, &error)),
            Err(refusal) if refusal.kind == Kind::Lost => Err(refusal),
            Err(refusal) => return Err(refusal),
        };
        // Another instance may have changed it: then the hold goes on under a new id.
        if let [lock] = &ticket.locks[..]
            && let Some(claim) =
                next_of(lock, &self.inspect(lock.key()).await?, &ticket.owner, change)
            && withdrawn.is_none_or(|own| own.grant_number() != claim.token.grant_number())
        {
            return self.take_over(ticket, &claim, caller).await.map(Current::Changed);
        }
        Err(match lost {
            Ok(error) => self.not_renewed(ticket, &error),
            Err(refusal) => refusal,
        })
    }

    /// The same hold, whose next claim says which one it replaces.
    fn named_after(&self, lock: &Unwatched, owner: &Arc<str>) -> Unwatched {
        let (origin, was) = (Origin::read(lock.holder()), Some(lock.id()));
        let session = origin.and_then(|origin| origin.session);
        let origin = Origin { owner: owner.clone(), session, was }.write();
        let holder = lock.holder().clone().with(|it| it.origin = Some(origin.into()));
        Unwatched::new(lock.key().clone(), lock.id(), lock.mode(), lock.token(), lock.ttl(), holder)
    }

    /// Goes on with the claim that has replaced a hold.
    async fn take_over(
        &self,
        ticket: &Ticket,
        claim: &StoreClaim,
        caller: &Caller,
    ) -> Result<HoldStatus, Refusal> {
        let locks = vec![claim.hold(ticket.lease())];
        let since = self.clock.wall().saturating_sub(claim.age.unwrap_or_default());
        let next = Ticket { locks, since, ..ticket.clone() };
        let text = self.seals.seal(Purpose::Hold, &next).ok_or_else(Refusal::no_hold)?;
        let status = self.renew_ticket(&next, caller).await?;
        self.check_session_of(&next).await?;
        if let Ok((Some(hold), _)) = self.registry.replace(ticket, &text) {
            self.publish_elsewhere(&hold);
        }
        self.registry.replace_in_session(ticket, &next);
        Ok(HoldStatus { id: text, ..status })
    }

    /// Whether an equal request at another instance was granted before this one.
    async fn is_second(
        &self,
        lock: &Unwatched,
        owner: &Arc<str>,
        change: Change,
        exchange: &Exchange,
    ) -> Result<bool, Refusal> {
        // A second writer is admitted only after the first hold was replaced.
        if change.mode() == Mode::Write {
            return Ok(false);
        }
        let next = next_of(lock, &self.inspect(lock.key()).await?, owner, change);
        Ok(next.is_some_and(|next| next.token.grant_number() < exchange.token().grant_number()))
    }

    /// Whether a change was refused because of an equal request at another instance.
    async fn is_overtaken(
        &self,
        lock: &Unwatched,
        owner: &Arc<str>,
        change: Change,
        error: &Error,
    ) -> bool {
        let may_wait = match error.kind() {
            ErrorKind::UpgradeConflict => true,
            ErrorKind::TimedOut => false,
            _ => return false,
        };
        self.inspect(lock.key()).await.is_ok_and(|seen| {
            next_of(lock, &seen, owner, change).is_some()
                || may_wait && is_waited_for(lock, &seen, owner)
        })
    }

    /// The result of [`granted_elsewhere`](Self::granted_elsewhere), unless the service stops or the token is revoked.
    async fn awaited_elsewhere(
        &self,
        lock: &Unwatched,
        caller: &Caller,
        change: Change,
    ) -> Result<Option<StoreClaim>, Refusal> {
        let (name, mut stopping) =
            (self.names.name_of(lock.key().as_str()), self.stopping.subscribe());
        tokio::select! {
            next = self.granted_elsewhere(lock, &caller.principal.name, change) => next,
            _ = stopping.wait_for(|it| *it) => Err(Refusal::closed()),
            refusal = self.access.revoked(caller, Right::Lock, from_ref(&name)) => Err(refusal),
        }
    }

    /// The claim by which another instance has changed the hold so, for a request whose answer was lost. While that
    /// request waits, so does this one. It releases the hold right after the grant. If it was killed in between, what it
    /// was granted is nobody's, and is released here.
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
                let waited = self.clock.now().since(start);
                if waited >= EXCHANGED_WITHIN.max(change.wait()) {
                    let message = "hold: an earlier request for this change still waits";
                    return Err(Refusal::new(Kind::TimedOut, message)
                        .key(self.names.name_of(lock.key().as_str()))
                        .with_next_step("renew the hold, and repeat this request within its ttl"));
                }
                pause((waited / 4).clamp(EXCHANGED_WITHIN / 10, EXCHANGED_WITHIN)).await;
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

    /// The answer to a change of a hold that its client keeps, which the library refuses.
    async fn not_changed(
        &self,
        ticket: &Ticket,
        caller: &Caller,
        change: Change,
        withdrawn: Option<FencingToken>,
        error: &Error,
    ) -> Result<HoldStatus, Refusal> {
        let name = &*self.name_of(ticket);
        let refusal = Refusal::of(error, Some(name));
        Err(match error.kind() {
            // The guard goes by its own clock, and another instance may have renewed or changed the hold.
            ErrorKind::Lost => {
                self.withdrawal(ticket, change).await?;
                match self.current(ticket, caller, change, withdrawn).await? {
                    Current::Changed(changed) => return Ok(changed),
                    Current::Held(_) => Refusal::again(
                        "hold: the service had no answer of the store for too long, and has withdrawn the change",
                        "repeat this request: the hold is as it was",
                    )
                    .key(name),
                }
            }
            ErrorKind::Invalid => refusal.with_next_step(change.fitting()),
            ErrorKind::Unreachable => self.not_renewed(ticket, error),
            _ => self.with_lock(refusal, caller, name, error).await,
        })
    }

    /// Waits while the store has what this request was granted, which is released in the background; not for long, as
    /// another request may have been granted the same.
    async fn withdrawal(&self, ticket: &Ticket, change: Change) -> Result<(), Refusal> {
        let ([lock], end) = (&ticket.locks[..], self.clock.now().plus(EXCHANGED_WITHIN)) else {
            return Ok(());
        };
        while self.clock.now() < end
            && next_of(lock, &self.inspect(lock.key()).await?, &ticket.owner, change).is_some()
        {
            pause(EXCHANGED_WITHIN / 10).await;
        }
        Ok(())
    }

    /// Goes on with what the store has granted in place of the hold. The outer error is that of a guard that was lost
    /// before: the hold is as it was.
    async fn exchanged(
        &self,
        ticket: &Ticket,
        mut guard: Guard,
        exchange: Exchange,
        caller: &Caller,
    ) -> Result<Result<Changed, Refusal>, Error> {
        let settled = match guard.exchange(exchange) {
            Ok(settled) => settled,
            Err(error) => {
                Unwatched::leave(guard);
                return Err(error);
            }
        };
        let settled = Box::pin(settled);
        Ok(self.replaced(ticket, guard, settled, caller).await)
    }

    async fn replaced(
        &self,
        ticket: &Ticket,
        guard: Guard,
        settled: Pin<Box<dyn Future<Output = ()> + Send>>,
        caller: &Caller,
    ) -> Result<Changed, Refusal> {
        let taken = Unwatched::of(guard).await;
        let (lock, until) = taken.map_err(|error| self.not_renewed(ticket, &error))?;
        let (key, token) = (lock.key().clone(), lock.token());
        let from = ticket.tokens().next().map_or(token, |(_, token)| token);
        let (locks, since) = (vec![lock], self.clock.wall());
        let next = Ticket { locks, since, period: None, ..ticket.clone() };
        let until = self.lengthened(&next, until).await;
        let until = until.map_err(|error| self.not_renewed(ticket, &error))?;
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
            Ok((lasted, status)) => Ok(Changed { key, from, token, lasted, status, settled }),
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
        check_wait(change.wait(), ttl)?;
        let (name, holder, prepared) = self.prepared(changing, caller, change).await?;
        let exchange = match prepared {
            Ok(exchange) => exchange,
            Err(error) => return self.unchanged(id, caller, change, &name, &error).await,
        };
        let changed = self.registry.exchange(id, owner, exchange, caller.arrival)?;
        let status = self.publish_change(changed, name, &holder, ttl, change).await;
        // The loop that ends holds does not find one that was lost before its token was entered.
        if let Some((_, hold, ending)) = self.registry.lost_already(id) {
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
        let Changing { name, holder, preparing, .. } = changing;
        let mut place = None;
        if let Change::Upgrade { wait } = change {
            let locks = [(&*name, change.mode().word())].into_iter();
            place =
                (!wait.is_zero()).then(|| self.queue.enter(locks, &holder, None, self.clock.now()));
        }
        let mut stopping = self.stopping.subscribe();
        let prepared = tokio::select! {
            prepared = WAITER.scope(holder.clone(), preparing) => prepared,
            _ = stopping.wait_for(|it| *it) => return Err(Refusal::closed()),
            refusal = self.access.revoked(caller, Right::Lock, from_ref(&name)) => return Err(refusal),
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
    async fn with_lock(
        &self,
        refusal: Refusal,
        caller: &Caller,
        name: &str,
        error: &Error,
    ) -> Refusal {
        match error.kind() {
            ErrorKind::TimedOut | ErrorKind::UpgradeConflict => {
                if !caller.principal.may(Right::Read, name) {
                    return refusal.without_holders();
                }
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
            _ => Err(self.with_lock(refusal, caller, name, error).await),
        }
    }
}

/// The first claim that the store has granted in place of a hold, by such a change.
fn next_of(
    lock: &Unwatched,
    seen: &Snapshot,
    owner: &Arc<str>,
    change: Change,
) -> Option<StoreClaim> {
    let claims = seen.holders.iter().filter_map(|party| StoreClaim::of(lock.key(), party));
    let next = claims.filter(|it| it.origin.was == Some(lock.id()) && it.id != lock.id());
    let next = next.filter(|it| it.origin.owner == *owner && it.mode == change.mode());
    next.min_by_key(|it| it.token.grant_number())
}

/// Whether an earlier request for a change of a hold waits at the store.
fn is_waited_for(lock: &Unwatched, seen: &Snapshot, owner: &Arc<str>) -> bool {
    let origins = seen.waiters.iter().filter_map(|party| Origin::read(&party.holder));
    origins.into_iter().any(|origin| origin.was == Some(lock.id()) && origin.owner == *owner)
}
