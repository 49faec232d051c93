//! `try_acquire`: a claim on a key.

use std::time::Duration;

use latchwork_store::kit::record::{Alive, Record, Waiter};
use latchwork_store::{Attempt, BackendError, Blocked, Cause, Claim, Moment, Order};

use crate::protocol::change::{Look, Step};
use crate::protocol::known::Entry;
use crate::protocol::names::object_of;
use crate::protocol::object::{Object, is_foreign, longest_rest, times};
use crate::protocol::shared::Store;
use crate::server::errors::managed;

/// No claim has a session that could die before its ttl is over.
pub(crate) const ALIVE: Alive<'static> = &|_| true;

/// A waiter that lost so many races for a place goes without one for now.
const RACES: u32 = 8;
/// How long a try waits for its turn: the one before may not be polled for a while. A version keeps tries apart as well.
const TURN: Duration = Duration::from_millis(250);
/// A try that follows another so soon is answered by the server, and later ones may be from memory.
const SOON: Duration = Duration::from_secs(1);

/// Marks a waiter that has no place because the object is full.
pub(crate) const FULL: &str = "full";

/// How long ago the server has heard of a claim that waits, if its try may be answered from what the watch has brought:
/// not if the watch is broken, nor if somebody asks in a hurry.
type Age = Option<Duration>;

impl Store {
    pub(crate) async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, BackendError> {
        let entry = self.known.entry(&object_of(&claim.key));
        let _turn = self.link.io.within(TURN, entry.turn.lock()).await;
        // Only a place in the queue is written: all others learn from the watch that they may come.
        let queues = claim.waits && claim.order == Order::Fifo;
        let asked = claim.clone().with(|it| it.waits = queues);
        let age = self.age(&entry, claim);
        let mut is_fresh = false;
        let judge = |record: &mut Record, look: &Look<'_>| {
            is_fresh = look.is_fresh;
            if let Some(field) = look.base.and_then(Object::managed_by)
                && look.before.held.iter().all(|held| held.id != asked.id)
            {
                return match look.is_fresh {
                    true => Step::Done(Err(managed(&self.namespace, &entry.name, &field))),
                    false => Step::Ask,
                };
            }
            let (answer, _) = record.try_acquire(&asked, 0, 0, times(look.now), ALIVE);
            match answer {
                Err(error) if look.is_fresh => Step::Done(Err(error)),
                Err(_) => Step::Ask,
                Ok(Attempt::Granted(grant)) => {
                    let is_new = look.before.held.iter().all(|held| held.id != asked.id);
                    match self.ousted(&entry, look.now).filter(|_| is_new) {
                        Some(blocked) => Step::Done(Ok(Attempt::Blocked(blocked))),
                        None if look.is_full => self.full(Blocked::by(Cause::Queued), look),
                        None => Step::Write(Ok(Attempt::Granted(grant))),
                    }
                }
                Ok(Attempt::Blocked(blocked)) if look.is_full => self.full(blocked, look),
                Ok(Attempt::Blocked(blocked)) => self.blocked(&asked, blocked, record, look, age),
            }
        };
        let (answer, written) =
            self.change(&claim.key, &entry, std::slice::from_ref(&asked), judge).await?;
        if claim.waits && (written.is_some() || is_fresh) {
            entry.note_asked(claim.id, self.link.io.now());
        }
        match answer? {
            Attempt::Granted(grant) => {
                entry.forget_asked(claim.id);
                let token = written.and_then(|object| object.token_of(claim.id));
                let token = token.unwrap_or(grant.token);
                Ok(Attempt::Granted(grant.with(|it| it.token = token)))
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
        age: Age,
    ) -> Step<Result<Attempt, BackendError>> {
        let knows = look.is_fresh || age.is_some_and(|age| age < longest_rest(claim.ttl) * 3 / 5);
        let place = look.before.queue.iter().find(|waiter| waiter.id == claim.id);
        if is_foreign(record) {
            // A place would be a write between two of the holder's own, which would then fail.
            if blocked.cause == Cause::Held {
                blocked.cause = Cause::Foreign;
            }
            blocked.ahead = None;
            return if knows { Step::Done(Ok(Attempt::Blocked(blocked))) } else { Step::Ask };
        }
        let writes = claim.waits || place.is_some();
        if writes && look.conflicts >= RACES {
            blocked.ahead = None;
            return Step::Done(Ok(Attempt::Blocked(blocked)));
        }
        let has_fresh_place = claim.waits
            && !look.is_fresh
            && place.zip(age).is_some_and(|(place, age)| age < time_to_repeat(claim, place, look));
        match (writes && !has_fresh_place, knows) {
            (true, _) => Step::Write(Ok(Attempt::Blocked(blocked))),
            (false, true) => Step::Done(Ok(Attempt::Blocked(blocked))),
            (false, false) => Step::Ask,
        }
    }

    /// The answer while one who held the key before the server's data were restored may believe that it still does.
    pub(crate) fn ousted(&self, entry: &Entry, now: Moment) -> Option<Blocked> {
        let (holder, left) = entry.ousted(now)?;
        Some(Blocked::by(Cause::Held).with(|it| {
            it.holder = Some(holder);
            it.retry_after = Some(left);
        }))
    }

    /// The answer to a claim for which there is no room: it waits without a place.
    fn full(&self, mut blocked: Blocked, look: &Look<'_>) -> Step<Result<Attempt, BackendError>> {
        if !look.is_fresh && !self.watcher.is_live() {
            return Step::Ask;
        }
        blocked.ahead = None;
        blocked.resume = Some(FULL.into());
        Step::Done(Ok(Attempt::Blocked(blocked)))
    }

    fn age(&self, entry: &Entry, claim: &Claim) -> Age {
        let age = self.link.io.now().since(entry.asked(claim.id)?);
        let may_remember = claim.waits && self.watcher.is_live() && age >= SOON.max(claim.ttl / 4);
        may_remember.then_some(age)
    }
}

/// After how long a place is repeated: one that rests is not, for as long as nobody calls.
fn time_to_repeat(claim: &Claim, place: &Waiter, look: &Look<'_>) -> Duration {
    let now = times(look.now).lease;
    let rests = place.expires.saturating_sub(now) > claim.ttl;
    (if rests { longest_rest(claim.ttl) } else { claim.ttl }) * 3 / 5
}
