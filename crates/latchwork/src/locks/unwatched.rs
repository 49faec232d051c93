//! A hold without a watchdog: its owner asks for each renewal.

#[cfg(feature = "once")]
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::hold::answered::Release;
use crate::hold::detach::{DatedRenewal, adopted, renew, unsupported};
use crate::hold::engine::Engine;
use crate::hold::guard::Guard;
use crate::hold::reaper::{Job, Withdrawal};
use crate::hold::ticket::Ticket;
use crate::locks::manager::LockManager;
use crate::locks::multi::MultiGuard;
#[cfg(feature = "once")]
use crate::locks::once::{Run, closed_until};
use crate::rules::observe::Event;
use crate::rules::token_base;
use latchwork_store::validity;
use latchwork_store::{
    BackendError, Claim, ClaimId, Error, ErrorKind, FencingToken, Holder, Key, Lost, LostReason,
    Mode, Moment, Order, Query, Renewal, Stamp,
};

/// A hold that nothing renews but its owner: plain data, without a task or a timer.
///
/// It is for `latchwork serve`, whose clients renew, and no API for other programs. An observer receives its renewals
/// and its release; of a loss it receives nothing, because only the owner knows the time of it. Any process that has these fields
/// can renew and release the hold. Dropping it does nothing: the hold lasts until its ttl is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unwatched(Ticket);

impl Unwatched {
    /// The hold that [`of`](Self::of) has returned in this or another process, from its fields.
    pub fn new(
        key: Key,
        id: ClaimId,
        mode: Mode,
        token: FencingToken,
        ttl: Duration,
        holder: Holder,
    ) -> Self {
        Self(Ticket { key, id, mode, token, ttl, holder })
    }

    /// Whether the store of this manager lets any process renew a hold.
    pub fn is_possible(locks: &LockManager) -> bool {
        locks.engine().backend.renews_for_others()
    }

    /// The manager whose claims say where they come from, and what their holder says to readers, as JSON: see
    /// [`Holder::origin`] and [`Holder::value`].
    #[must_use]
    pub fn marked(locks: LockManager, origin: Arc<str>, value: Option<Arc<str>>) -> LockManager {
        locks.marked(origin, value)
    }

    /// Takes the hold out of its guard, without a request to the store unless the hold is in doubt. Returns the end of
    /// its validity as well.
    ///
    /// # Errors
    ///
    /// `Lost`; `Unsupported` if the store ties a claim to a process. The hold is released by the drop of the guard.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the hold in the background.
    pub async fn of(guard: Guard) -> Result<(Self, Moment), Error> {
        if !guard.engine().backend.renews_for_others() {
            return Err(unsupported(guard.engine()).with_key(guard.key()));
        }
        guard.settled().await;
        let lease = &guard.hold().0.lease;
        let claim = lease.claim_as_kept();
        // A store that counts whole seconds grants more than was asked for.
        let spare = lease.granted_ttl().saturating_sub(claim.ttl);
        let valid_until = guard.valid_until().minus(spare);
        let (engine, token) = (guard.engine().clone(), guard.token());
        guard.stop()?;
        let id = engine.backend.detach(&claim);
        Ok((Self(Ticket::of(claim.with(|it| it.id = id), token)), valid_until))
    }

    /// Takes several holds out of their guard, as [`of`](Self::of).
    ///
    /// # Errors
    ///
    /// As [`of`](Self::of), if one of them was lost. All are released.
    ///
    /// # Cancel safety
    ///
    /// As [`of`](Self::of).
    pub async fn of_several(guards: MultiGuard) -> Result<(Vec<Self>, Moment), Error> {
        let guards = guards.into_guards();
        for guard in &guards {
            guard.settled().await;
        }
        let (mut holds, mut until) = (Vec::with_capacity(guards.len()), Moment::NEVER);
        let engine = guards.first().map(|guard| guard.engine().clone());
        for guard in guards {
            // It is settled, so nothing waits here: the future is not dropped with some of them taken out.
            match Self::of(guard).await {
                Ok((hold, valid_until)) => {
                    holds.push(hold);
                    until = until.min(valid_until);
                }
                Err(error) => {
                    let engine = engine.as_ref().expect("there was a guard");
                    for hold in holds {
                        engine.reaper.reap(Job::of(hold.claim(engine), Arc::default()));
                    }
                    return Err(error);
                }
            }
        }
        Ok((holds, until))
    }

    /// Takes the hold of a task out of its run, as [`of`](Self::of).
    ///
    /// # Errors
    ///
    /// As [`of`](Self::of).
    ///
    /// # Cancel safety
    ///
    /// As [`of`](Self::of).
    #[cfg(feature = "once")]
    pub async fn of_run(run: Run) -> Result<(Self, Moment), Error> {
        Self::of(run.into_guard()).await
    }

    /// The key of the lock.
    pub fn key(&self) -> &Key {
        &self.0.key
    }

    /// The id of the claim.
    pub fn id(&self) -> ClaimId {
        self.0.id
    }

    /// The mode of the hold.
    pub fn mode(&self) -> Mode {
        self.0.mode
    }

    /// The fencing token.
    pub fn token(&self) -> FencingToken {
        self.0.token
    }

    /// The ttl that was granted.
    pub fn ttl(&self) -> Duration {
        self.0.ttl
    }

    /// The description that other clients see.
    pub fn holder(&self) -> &Holder {
        &self.0.holder
    }

    /// The claim as its process had it.
    fn claim(&self, engine: &Engine) -> Claim {
        self.0.claim(engine)
    }

    /// Renews the hold at the store, now and for `ttl`. Returns the end of its validity.
    ///
    /// # Errors
    ///
    /// `Lost` if the store does not have the hold. `Unreachable` if it does not answer in time.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the hold with its old end or the new one.
    pub async fn renew(&self, locks: &LockManager, ttl: Duration) -> Result<Moment, Error> {
        let (engine, rules) = (locks.engine(), locks.plan()?.rules);
        engine.check_open(Some(self.key()))?;
        let claim = self.claim(engine).with(|it| it.ttl = ttl);
        let claim = adopted(engine, &rules, claim, self.token());
        let DatedRenewal { sent, answer } = renew(engine, &claim, &rules).await?;
        let Renewal::Held { ttl, token, .. } = answer else { return Err(self.lost(engine)) };
        let first = rules.token(token);
        let first = first.ok_or_else(|| token_base::no_room(self.key(), &engine.capabilities))?;
        if first.handed_over(self.token().handovers()) != Some(self.token()) {
            // A late copy of the acquire has planted the claim again, after its end.
            engine.reaper.reap(Job::of(claim, rules));
            return Err(self.lost(engine));
        }
        let now = engine.io.now();
        let paused = sent.paused(engine.io.clock().as_ref(), now);
        let valid_until = validity::valid_until(sent.at, ttl).minus(paused);
        if valid_until <= now {
            // It came when nothing could rely on it any more.
            let none = BackendError::no_answer(now.since(sent.at));
            return Err(engine.seen(none, Some(self.key())));
        }
        let (took, remaining) = (now.since(sent.at), valid_until.since(now));
        let (key, token, late) = (self.key(), self.token(), Duration::ZERO);
        rules.tell(&Event::Renewed { key, token, took, late, remaining });
        Ok(valid_until)
    }

    /// Asks the store for the hold, and renews nothing: the end of its validity, or `None` if it is no longer held.
    ///
    /// # Errors
    ///
    /// Those of the store.
    ///
    /// # Cancel safety
    ///
    /// It may be dropped at any time.
    pub async fn look(&self, locks: &LockManager) -> Result<Option<Moment>, Error> {
        let (engine, rules) = (locks.engine(), locks.plan()?.rules);
        engine.check_open(Some(self.key()))?;
        let asked_at = engine.io.now();
        let (query, limit) = (Query::Key(self.key().clone()), rules.op_timeout(self.ttl()));
        let seen = engine.inspect(&query, limit, Some(self.key())).await?;
        let mut holders = seen.iter().flat_map(|seen| &seen.holders);
        let Some(party) = holders.find(|party| party.id == Some(self.id())) else {
            return Ok(None);
        };
        let left = party.remaining.unwrap_or(self.ttl());
        let until = Self::seen_until(locks, asked_at, left);
        // What a store shows has the lock delay in it.
        Ok(Some(until.minus(self.holder().room_for_delay())))
    }

    /// Until when a hold is valid of which the store, asked at `asked_at`, said that so much of its ttl is left. Not longer
    /// than until then if other clients may see its end sooner.
    pub fn seen_until(locks: &LockManager, asked_at: Moment, left: Duration) -> Moment {
        match locks.engine().backend.counts_for_all() {
            true => validity::valid_until(asked_at, left),
            false => asked_at,
        }
    }

    /// Lends the hold to a guard, which renews it from now on; the first time before this returns.
    ///
    /// Other processes may renew it meanwhile. So if the guard is lost, the hold stays at the store, and the observer
    /// receives no loss: [`renew`](Self::renew) tells whether it goes on.
    ///
    /// # Errors
    ///
    /// As [`renew`](Self::renew).
    ///
    /// # Cancel safety
    ///
    /// As [`renew`](Self::renew).
    pub async fn watch(&self, locks: &LockManager) -> Result<Guard, Error> {
        let engine = locks.engine();
        engine.check_open(Some(self.key()))?;
        let guard = locks.resume(&self.0, true, || self.lost(engine)).await?;
        let (key, token) = (self.key(), self.token());
        guard.hold().0.lease.rules.tell(&Event::Adopted { key, token });
        Ok(guard)
    }

    /// Takes back the hold of a guard that [`watch`](Self::watch) has returned, as if there had been none.
    pub fn leave(guard: Guard) {
        let (engine, claim) = (guard.engine().clone(), guard.hold().0.lease.claim_as_kept());
        // If it was lost, there is nothing to leave.
        if guard.give_up().is_ok() {
            engine.backend.detach(&claim);
        }
    }

    /// Releases the hold; asks again until the store answers or the lease is over. `failed` gets the error of each
    /// request that had no answer. `held` is how long the hold has lasted, for observers.
    ///
    /// # Errors
    ///
    /// As [`Guard::release_until_answered`].
    ///
    /// # Cancel safety
    ///
    /// A release that was begun continues in the background.
    pub async fn release(
        self,
        locks: &LockManager,
        held: Duration,
        failed: impl FnMut(&Error),
    ) -> Result<(), Error> {
        self.end(locks, held, None, failed).await
    }

    /// Releases the hold of a task, and keeps it closed for its period; see [`release`](Self::release).
    ///
    /// # Errors
    ///
    /// As [`Run::succeed_until_answered`].
    ///
    /// # Cancel safety
    ///
    /// As [`release`](Self::release).
    #[cfg(feature = "once")]
    pub async fn succeed(
        self,
        locks: &LockManager,
        held: Duration,
        period: Range<Duration>,
        failed: impl FnMut(&Error),
    ) -> Result<(), Error> {
        let io = &locks.engine().io;
        let until = closed_until(&period, io.now(), io.clock().wall());
        self.end(locks, held, until, failed).await
    }

    async fn end(
        self,
        locks: &LockManager,
        held: Duration,
        closed_until: Option<Moment>,
        failed: impl FnMut(&Error),
    ) -> Result<(), Error> {
        let (engine, rules) = (locks.engine(), locks.plan()?.rules);
        engine.check_here(Some(self.key()))?;
        let token = self.token();
        // Read once: a release that is repeated tells the same time.
        let closed_at = closed_until.map(|_| engine.io.clock().wall());
        let claim = self.claim(engine).with(|it| it.holder.closed_at = closed_at);
        let job = Job { closed_until, held: Some((token, held)), ..Job::of(claim, rules) };
        let withdrawal = Withdrawal::new(&engine.reaper, job);
        let release = Release { engine, token };
        let answer = engine.native(release.until_answered(withdrawal, failed)).await;
        engine.told(answer, Some(self.key()))
    }

    fn lost(&self, engine: &Engine) -> Error {
        Error::new(ErrorKind::Lost, "the lock is no longer held")
            .with_lost(Lost::new(LostReason::Taken, engine.io.now()))
            .with_key(self.key())
            .with_store(engine.capabilities.store.clone())
            .with_next_step(format!("check what was written under token {}", self.token()))
    }
}

impl Ticket {
    /// The claim of the hold, for any process.
    pub(crate) fn claim(&self, engine: &Engine) -> Claim {
        let stamp = Stamp::new(engine.io.now());
        Claim::new(self.key.clone(), self.id, self.mode, self.ttl, stamp).with(|it| {
            it.order = if engine.capabilities.fifo { Order::Fifo } else { Order::Barging };
            it.holder = self.holder.clone();
            it.waits = false;
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_small() {
        assert!(size_of::<Unwatched>() < 200, "{}", size_of::<Unwatched>());
    }
}
