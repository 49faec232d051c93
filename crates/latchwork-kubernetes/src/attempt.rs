//! `try_acquire`: a claim on a key.

use std::time::Duration;

use latchwork_store::kit::record::{Alive, Record};
use latchwork_store::{Attempt, BackendError, Blocked, Cause, Claim, Grant, Moment, Order};

use crate::backend::Store;
use crate::change::{Look, Step};
use crate::known::Entry;
use crate::names::object_of;
use crate::object::{is_foreign, times};

/// No claim has a session that could die before its ttl is over.
pub(crate) const ALIVE: Alive<'static> = &|_| true;

/// A waiter that lost so many races for a place goes without one for now.
const RACES: u32 = 8;
/// A try that follows another so soon is answered by the server, and later ones may be from memory.
const SOON: Duration = Duration::from_secs(1);

impl Store {
    pub(crate) async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, BackendError> {
        let entry = self.known.entry(&object_of(&claim.key));
        let _turn = entry.turn.lock().await;
        // Only a place in the queue is written: all others learn from the watch that they may come.
        let queues = claim.waits && claim.order == Order::Fifo;
        let asked = claim.clone().with(|it| it.waits = queues);
        let may_remember = self.may_remember(&entry, claim);
        let judge = |record: &mut Record, look: &Look<'_>| {
            let (answer, _) = record.try_acquire(&asked, 0, 0, times(look.now), ALIVE);
            match answer {
                Err(error) if look.is_fresh => Step::Done(Err(error)),
                Err(_) => Step::Ask,
                Ok(Attempt::Granted(grant)) => Step::Write(Ok(Attempt::Granted(grant))),
                Ok(Attempt::Blocked(blocked)) => {
                    self.blocked(&asked, blocked, record, look, may_remember)
                }
            }
        };
        let (answer, written) =
            self.change(&claim.key, &entry, std::slice::from_ref(&asked), judge).await?;
        if written.is_some() || !may_remember {
            entry.note_asked(claim.id, self.link.io.now());
        }
        match answer? {
            Attempt::Granted(grant) => {
                entry.forget_asked(claim.id);
                let token = written.and_then(|object| object.token_of(claim.id));
                let token = token.unwrap_or(grant.token);
                Ok(Attempt::Granted(Grant { token, ..grant }))
            }
            blocked @ Attempt::Blocked(_) => Ok(blocked),
        }
    }

    fn blocked(
        &self,
        claim: &Claim,
        mut blocked: Blocked,
        record: &Record,
        look: &Look<'_>,
        may_remember: bool,
    ) -> Step<Result<Attempt, BackendError>> {
        let knows = look.is_fresh || may_remember;
        let had_place = look.before.line.iter().any(|waiter| waiter.id == claim.id);
        if is_foreign(record) {
            // A place would be a write between two of the holder's own, which would then fail.
            if blocked.cause == Cause::Held {
                blocked.cause = Cause::Foreign;
            }
            blocked.ahead = None;
            return if knows { Step::Done(Ok(Attempt::Blocked(blocked))) } else { Step::Ask };
        }
        let writes = claim.waits || had_place;
        if writes && look.conflicts >= RACES {
            blocked.ahead = None;
            return Step::Done(Ok(Attempt::Blocked(blocked)));
        }
        let has_fresh_place = claim.waits && had_place && may_remember && !look.is_fresh;
        match (writes && !has_fresh_place, knows) {
            (true, _) => Step::Write(Ok(Attempt::Blocked(blocked))),
            (false, true) => Step::Done(Ok(Attempt::Blocked(blocked))),
            (false, false) => Step::Ask,
        }
    }

    /// Whether a try of a claim that waits can be answered from what the watch has brought: the server has heard of
    /// the claim not long ago, and nobody asks in a hurry.
    fn may_remember(&self, entry: &Entry, claim: &Claim) -> bool {
        let age = |asked: Moment| self.link.io.now().since(asked);
        let is_due = |age: Duration| age < SOON.max(claim.ttl / 4) || age >= claim.ttl * 3 / 5;
        claim.waits && self.watcher.is_live() && !entry.asked(claim.id).map(age).is_none_or(is_due)
    }
}
