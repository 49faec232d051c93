//! A release that is asked for until the store answers.

use std::sync::Arc;
use std::time::Duration;

use latchwork_store::{
    Backoff, Claim, Effect, Error, ErrorKind, FencingToken, Lost, LostReason, Moment, Query,
    Released, Snapshot,
};

use crate::hold::delayed::Delayed;
use crate::hold::engine::Engine;
use crate::hold::guard::{Guard, lost_before};
use crate::hold::reaper::{Job, Withdrawal, linger_until, tell_released};
use crate::rules::observe::Event;

/// The pause before the second request.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

impl Guard {
    /// Releases the lock as [`release`](Guard::release) does, and asks again until the store answers or the lease is
    /// over.
    ///
    /// For a caller that must know the outcome, such as one that reports it to another program. `failed` gets the
    /// error of each request that had no answer.
    ///
    /// # Errors
    ///
    /// - [`Lost`](ErrorKind::Lost) if the hold was lost before, as for `release`.
    /// - Any other kind if the outcome is not known: the lease ended without an answer, or the store no longer has the
    ///   hold and the answer to an earlier request was lost. Then that request has released it, unless it had been
    ///   lost before.
    /// - `Forked` in a child of the process that has the lock, where nothing is done.
    ///
    /// # Cancel safety
    ///
    /// The guard is consumed in any case. A dropped release continues in the background.
    pub async fn release_until_answered(self, failed: impl FnMut(&Error)) -> Result<(), Error> {
        self.end_until_answered(None, failed).await
    }

    /// As [`release_until_answered`](Guard::release_until_answered), and keeps the key closed to everyone until then.
    pub(crate) async fn end_until_answered(
        self,
        closed_until: Option<Moment>,
        failed: impl FnMut(&Error),
    ) -> Result<(), Error> {
        let (engine, key) = (self.engine().clone(), self.key().clone());
        let answer = engine.native(self.end_here(closed_until, failed)).await;
        engine.told(answer, Some(&key))
    }

    async fn end_here(
        mut self,
        closed_until: Option<Moment>,
        failed: impl FnMut(&Error),
    ) -> Result<(), Error> {
        let Some(withdrawal) = self.withdraw(closed_until)? else { return Ok(()) };
        let limit = withdrawal.job().rules.op_timeout(withdrawal.job().claim.ttl);
        let release = Release { engine: self.engine(), token: self.token() };
        let ended = release.until_answered(withdrawal, failed).await;
        self.leave_alone(limit).await;
        ended
    }
}

/// The release of a hold that was under this token.
pub(crate) struct Release<'a> {
    pub(crate) engine: &'a Arc<Engine>,
    pub(crate) token: FencingToken,
}

impl Release<'_> {
    /// Asks the store until it answers or the lease is over.
    pub(crate) async fn until_answered(
        &self,
        mut withdrawal: Withdrawal,
        mut failed: impl FnMut(&Error),
    ) -> Result<(), Error> {
        let Self { engine, token } = *self;
        let Job { claim, rules, held, closed_until, .. } = withdrawal.job();
        let (claim, rules, held, closed_until) =
            (claim.clone(), rules.clone(), *held, *closed_until);
        let key = &claim.key;
        let limit = rules.op_timeout(claim.ttl);
        // What the claim may have left ends by itself then (B15).
        let over = engine.io.now().plus(Delayed::kept_for(&claim));
        let mut backoff = Backoff::new(FIRST_PAUSE.min(limit), limit);
        let mut may_be_done = false;
        loop {
            let linger = linger_until(closed_until, engine.io.now());
            let answer = engine.reaper.release_once(&claim, linger, limit).await;
            // The next waiter of this process need not wait for an answer.
            withdrawal.pass_on();
            let error = match answer {
                Ok(released) => {
                    withdrawal.settled();
                    tell_released(&rules, key, held);
                    return match released {
                        Released::Yes => Ok(()),
                        Released::NotHeld if !may_be_done => {
                            let lost = Lost::new(LostReason::Taken, engine.io.now());
                            Err(lost_before(engine, key, token, lost))
                        }
                        Released::NotHeld => self.released_before(&claim, limit).await,
                    };
                }
                Err(error) => error,
            };
            may_be_done |= error.effect == Effect::Unknown;
            let pause = backoff.pause();
            let is_over = engine.io.now().plus(pause) >= over;
            if is_over {
                withdrawal.settled();
                rules.tell(&Event::ReleaseFailed { key, held, error: &error });
            }
            let error = engine.seen(error, Some(key));
            if is_over {
                return Err(error.with_next_step(
                    "check what was done: the store has not answered the release",
                ));
            }
            failed(&error);
            engine.io.sleep(pause).await;
        }
    }

    /// The store no longer has the claim, and an earlier request may have ended it: what the key shows of that.
    async fn released_before(&self, claim: &Claim, limit: Duration) -> Result<(), Error> {
        let (engine, key) = (self.engine, &claim.key);
        let seen = engine.inspect(&Query::Key(key.clone()), limit, Some(key)).await;
        if seen.is_ok_and(|seen| seen.iter().any(|seen| self.is_ended_by(claim, seen))) {
            return Ok(());
        }
        let token = self.token;
        let message = "the store no longer has the hold, and its answer to an earlier release was lost: that one \
                       has released it, unless it had been lost before";
        Err(Error::new(ErrorKind::Unreachable, message)
            .with_next_step(format!(
                "check what was written under token {token} if an overlap would do harm"
            ))
            .with_key(key)
            .with_store(engine.capabilities.store.clone()))
    }

    /// Whether the key shows that this hold was the last one, and closed it if it was to.
    fn is_ended_by(&self, claim: &Claim, seen: &Snapshot) -> bool {
        let in_millis = |at: Duration| at.as_millis();
        match claim.holder.closed_at.map(in_millis) {
            // Its time tells it from another holder's closing.
            Some(at) => seen.closed_by.as_ref().is_some_and(|by| {
                by.text == claim.holder.text && by.closed_at.map(in_millis) == Some(at)
            }),
            // With another grant, the hold may have been lost before that.
            None => seen.holders.is_empty() && seen.token == self.token.grant_number(),
        }
    }
}
