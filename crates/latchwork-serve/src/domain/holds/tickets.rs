//! What this instance remembers of holds that their clients keep: for limits, lists and events. The store decides what
//! is held.

use std::sync::Arc;
use std::time::Duration;

use latchwork::FencingToken;
use latchwork_store::validity::drift;
use latchwork_store::{Key, Moment};

use super::ended::{EndedHold, Ending};
use super::hold_status::HoldStatus;
use super::id::HoldId;
use super::kept::{Kept, Known};
use super::registry::{Hold, Registry, State, weight};
use super::release::{ReleaseKind, ReleaseOutcome};
use super::ticket::Ticket;
use super::validity::promised;
use crate::domain::refusal::Refusal;

/// When a hold that nobody renews is looked for at the store before its end: a tenth of its lease.
const LAST_PART: u32 = 10;

/// How soon the store is asked again that has not answered.
const AGAIN: Duration = Duration::from_secs(1);

/// How long after its end a hold is forgotten of which the store says nothing.
const PATIENCE: Duration = Duration::from_secs(60);

/// A hold that the store has confirmed.
pub(crate) struct Confirmed {
    pub(crate) status: HoldStatus,
    /// Whether this instance did not know it.
    pub(crate) is_new: bool,
}

/// A hold whose end is near, and of which the store is to be asked.
pub(crate) struct Doubtful {
    pub(crate) id: HoldId,
    pub(crate) key: Key,
}

/// What the store has told of a hold whose end was near.
pub(crate) enum Sighting {
    /// It has so much left, and is valid so long.
    Held {
        left: Duration,
        until: Moment,
    },
    Gone,
    /// It did not answer.
    Silence,
}

impl Ticket {
    /// What an instance keeps of it.
    pub(crate) fn known(&self, until: Moment, now: Moment, wall: Duration) -> Known {
        Known {
            locks: self.tokens().map(|(key, token)| (key.clone(), token)).collect(),
            until,
            period: self.period.clone(),
            max_at: self.max_left(wall).map_or(Moment::NEVER, |left| now.plus(left)),
            is_seen: false,
            is_lent: false,
        }
    }
}

impl Registry {
    /// When this instance looks after a hold whose lease was restarted by now: at its end; before it, if another
    /// instance may renew it.
    pub(super) fn review_at(&self, now: Moment, lease: Duration, known: &Known) -> Moment {
        let at = match self.is_shared {
            true => now.plus(lease - lease / LAST_PART),
            false => now.plus(lease).plus(drift(lease)),
        };
        at.min(known.max_at)
    }

    /// A guard keeps the hold of this ticket from now on, or no longer.
    pub(crate) fn lend(&self, ticket: &Ticket, is_lent: bool) {
        let (id, now) = (ticket.id(), self.clock.now());
        let mut state = self.lock();
        let Some(Hold { kept: Kept::Ticket(known), end, .. }) = state.holds.get_mut(&id) else {
            return;
        };
        known.is_lent = is_lent;
        let (before, after) = (*end, self.review_at(now, ticket.lease(), known));
        *end = after;
        state.by_end.remove(&(before, id));
        state.by_end.insert((after, id));
        drop(state);
        self.sooner.notify_one();
    }

    /// The end of a hold of this owner, if this instance has seen it.
    pub(crate) fn ended(&self, id: HoldId, owner: &str) -> Option<EndedHold> {
        self.lock().ended.find(id).filter(|hold| *hold.owner == *owner).cloned()
    }

    /// The hold of a ticket whose validity ends at `until`, for a request that arrived at `arrival`. If the hold was
    /// `renewed`, `until` replaces what was known; a look never shortens it.
    ///
    /// # Errors
    ///
    /// Those of a hold that has ended meanwhile.
    pub(crate) fn confirm(
        &self,
        ticket: &Ticket,
        until: Moment,
        arrival: Moment,
        renewed: bool,
    ) -> Result<Confirmed, Refusal> {
        let (id, now, wall) = (ticket.id(), self.clock.now(), self.clock.wall());
        let mut until = match ticket.max_left(wall) {
            Some(left) => until.min(now.plus(left)),
            None => until,
        };
        let mut state = self.lock();
        if let Some(ended) = state.ended.find(id) {
            return Err(ended.refusal());
        }
        let mut entry = state.holds.remove(&id);
        let mut is_new = false;
        if let Some(Hold { kept: Kept::Ticket(known), end, .. }) = &mut entry {
            state.by_end.remove(&(*end, id));
            if !renewed {
                until = until.max(known.until);
            }
            known.until = until;
            known.is_seen &= !renewed;
            let review = self.review_at(now, ticket.lease(), known);
            *end = if renewed { review } else { (*end).max(until.min(review)) };
        } else if renewed {
            // Of another instance, or of the life before this one.
            let known = ticket.known(until, now, wall);
            let end = self.review_at(now, ticket.lease(), &known);
            let since = now.minus(wall.saturating_sub(ticket.since));
            let (kept, ttl) = (Kept::Ticket(Box::new(known)), ticket.ttl);
            let hold = Hold { owner: ticket.owner.clone(), kept, ttl, end, since };
            entry = self.enlist(&mut state, id, &hold).then_some(hold);
            is_new = entry.is_some();
        }
        if let Some(hold) = entry {
            let end = hold.end;
            let is_first = state.by_end.first().is_none_or(|(first, _)| end < *first);
            state.by_end.insert((end, id));
            state.holds.insert(id, hold);
            if is_first {
                self.sooner.notify_one();
            }
        }
        drop(state);
        let valid_for = promised(arrival, until, ticket.ttl);
        let name = |key: &Key| self.names.name_of(key.as_str());
        let status = HoldStatus {
            id: String::new(),
            locks: ticket.tokens().map(|(key, token)| (name(key), token)).collect(),
            is_suspect: false,
            ttl: ticket.ttl,
            valid_for,
            renew_in: valid_for.saturating_sub(now.since(arrival)) / 3,
            period: ticket.period.clone(),
        };
        Ok(Confirmed { status, is_new })
    }

    /// Counts the locks of a hold that another instance has granted; `false` if the owner has too many here, or one of
    /// them belongs to another hold.
    fn enlist(&self, state: &mut State, id: HoldId, hold: &Hold) -> bool {
        let locks: usize = hold.kept.locks().map(|(key, _)| weight(key.as_str())).sum();
        let is_known = |(key, token): (&Key, _)| state.by_lock.contains_key(&(key.clone(), token));
        if hold.kept.locks().any(is_known) || !state.has_room(&hold.owner, locks, self.limits.holds)
        {
            return false;
        }
        for (key, token) in hold.kept.locks() {
            state.by_lock.insert((key.clone(), token), id);
        }
        state.count(&hold.owner, |counts| counts.locks += locks);
        true
    }

    /// How a hold has ended that the store does not have.
    pub(crate) fn gone(&self, ticket: &Ticket) -> Ending {
        let (now, wall) = (self.clock.now(), self.clock.wall());
        let state = self.lock();
        let known = state.holds.get(&ticket.id()).and_then(|hold| hold.kept.known());
        if ticket.max_left(wall).is_some_and(|left| left.is_zero()) {
            Ending::Lost("max_hold")
        } else if ticket.tokens().any(|(key, _)| state.forcing.contains_key(key)) {
            Ending::Forced
        } else if known.is_some_and(|known| known.until <= now) {
            Ending::NotRenewed
        } else {
            Ending::Lost("taken")
        }
    }

    /// Keeps how the hold of a ticket has ended, and removes it. Returns it if this instance had it.
    pub(crate) fn end_ticket(&self, ticket: &Ticket, ending: Ending) -> Option<Hold> {
        let (id, now) = (ticket.id(), self.clock.now());
        let mut state = self.lock();
        let hold = state.remove(now, id, ending, &self.names);
        if hold.is_none() && state.ended.find(id).is_none() {
            let first = ticket.tokens().next();
            let name = first.map(|(key, _)| self.names.name_of(key.as_str()));
            let (owner, name) = (ticket.owner.clone(), name.unwrap_or_default().into());
            state.ended.add(now, id, EndedHold { owner, name, ending, successor: None });
        }
        drop(state);
        self.fewer.notify_waiters();
        hold
    }

    /// Removes a hold that another instance may have released. Returns it if this instance had it.
    pub(crate) fn forget_ticket(&self, ticket: &Ticket) -> Option<Hold> {
        let hold = self.lock().forget(ticket.id());
        self.fewer.notify_waiters();
        hold
    }

    /// Ends a hold that was replaced, with the id of the one that replaces it. Returns how long it has lasted.
    ///
    /// # Errors
    ///
    /// Those of a hold that has ended meanwhile.
    pub(crate) fn replace(
        &self,
        ticket: &Ticket,
        successor: &str,
    ) -> Result<(Option<Hold>, Duration), Refusal> {
        let lasted = self.clock.wall().saturating_sub(ticket.since);
        if let Some(ended) = self.ended(ticket.id(), &ticket.owner) {
            return Err(ended.refusal());
        }
        let ending = Ending::Released(ReleaseKind::Release, ReleaseOutcome::Held);
        let hold = self.end_ticket(ticket, ending);
        self.lock().ended.succeed(ticket.id(), successor);
        Ok((hold, lasted))
    }

    /// Removes the holds of tickets that an administrator has taken away: those of this key with one of these tokens.
    pub(crate) fn forced(&self, key: &Key, tokens: &[FencingToken]) -> Vec<(Hold, Ending)> {
        let now = self.clock.now();
        let mut state = self.lock();
        let is_one = |held: &Key, token: FencingToken| {
            held == key && tokens.iter().any(|it| it.grant_number() == token.grant_number())
        };
        let of_key = state.by_lock.iter().filter(|((held, token), _)| is_one(held, *token));
        let of_key: Vec<_> = of_key.map(|(_, id)| *id).collect();
        let mut over = Vec::new();
        for id in of_key {
            if state.holds.get(&id).is_some_and(|hold| hold.kept.known().is_some()) {
                let hold = state.remove(now, id, Ending::Forced, &self.names);
                over.extend(hold.map(|hold| (hold, Ending::Forced)));
            }
        }
        over
    }

    /// Takes what the store has told of a hold whose end was near. If it is over, returns it with its ending; `None` as
    /// the ending if another instance has ended it.
    pub(crate) fn sighted(
        &self,
        id: HoldId,
        sighting: &Sighting,
    ) -> Option<(Hold, Option<Ending>)> {
        let now = self.clock.now();
        let mut state = self.lock();
        let hold = state.holds.get_mut(&id)?;
        let before = hold.end;
        let Kept::Ticket(known) = &mut hold.kept else { return None };
        let end = match sighting {
            Sighting::Held { left, until } => {
                known.until = known.until.max(*until);
                let end = now.plus(*left).plus(drift(*left));
                // With more than the last part, another instance has renewed it.
                let last = hold.ttl / LAST_PART;
                known.is_seen = *left <= last + last / 2;
                match known.is_seen {
                    true => end,
                    false => now.plus(left.saturating_sub(last)),
                }
            }
            Sighting::Silence if now.since(known.until) < PATIENCE => now.plus(AGAIN),
            // Other instances may have renewed it all the time: only the store knows.
            Sighting::Silence => return state.forget(id).map(|hold| (hold, None)),
            Sighting::Gone => {
                let is_late = known.is_seen || known.until <= now;
                if is_late {
                    let ending = Ending::NotRenewed;
                    let hold = state.remove(now, id, ending, &self.names)?;
                    return Some((hold, Some(ending)));
                }
                return state.forget(id).map(|hold| (hold, None));
            }
        };
        hold.end = end;
        state.by_end.remove(&(before, id));
        state.by_end.insert((end, id));
        None
    }

    /// Keeps a new hold of a ticket. A renewal of its session may have entered its locks before: returns those entries.
    ///
    /// # Errors
    ///
    /// `Closed` if the service stops.
    pub(crate) fn insert_ticket(
        &self,
        ticket: &Ticket,
        until: Moment,
    ) -> Result<Vec<Hold>, Refusal> {
        let (now, wall) = (self.clock.now(), self.clock.wall());
        let known = ticket.known(until, now, wall);
        let end = self.review_at(now, ticket.lease(), &known);
        let (owner, ttl): (Arc<str>, _) = (ticket.owner.clone(), ticket.ttl);
        let kept = Kept::Ticket(Box::new(known));
        let ids: Vec<_> = ticket.ids().collect();
        self.keep(&ids, Hold { owner, kept, ttl, end, since: now })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::holds::registry::Limits;
    use crate::domain::names::Names;
    use latchwork::{Driver, Unwatched};
    use latchwork_store::{ClaimId, Holder, Mode};

    /// A hold of so many locks, and a registry that has room for `most`.
    fn registry_of(locks: usize, most: usize) -> (Driver, Arc<Registry>, Ticket) {
        let driver = Driver::start().unwrap();
        let clock = driver.io().clock().clone();
        let limits = Limits { holds: most, waiters: 1 };
        let since = clock.wall();
        let registry = Registry::new(clock, limits, Names::new(""), true);
        let lock = |number| {
            let (key, id) = (Key::new(format!("lock-{number}")).unwrap(), ClaimId::random());
            let (token, lease) = (FencingToken::from_raw(7), Duration::from_secs(10));
            Unwatched::new(key, id, Mode::Exclusive, token, lease, Holder::new("me"))
        };
        let ticket = Ticket {
            owner: "me".into(),
            locks: (0..locks).map(lock).collect(),
            ttl: Duration::from_secs(10),
            since,
            max_end: None,
            period: None,
        };
        (driver, registry, ticket)
    }

    /// H441: a renewal of the session finds the claim at the store before the acquire has entered it.
    #[test]
    fn h441_a_hold_that_a_renewal_entered_first_is_counted_once() {
        let (_driver, registry, ticket) = registry_of(1, 1);
        let now = registry.clock.now();
        let until = now.plus(ticket.ttl);
        assert!(registry.confirm(&ticket, until, now, true).ok().unwrap().is_new);
        assert_eq!(registry.insert_ticket(&ticket, until).unwrap().len(), 1);
        assert_eq!(registry.lock().by_end.len(), 1, "an end of no hold");
        // An end of no hold is removed when it comes: the loop would turn without a pause.
        let stale = (Moment::from_nanos(0), ticket.id());
        registry.lock().by_end.insert(stale);
        assert!(registry.remove_late().2 > now && registry.count() == 1);
        registry.forget_ticket(&ticket).unwrap();
        assert!(registry.enter(&ticket.owner, 0, 1).is_ok(), "counted twice");
        assert_eq!(registry.lock().by_end.len(), 0);
    }

    /// H451: the same of several locks, which the renewal finds each by itself, before the acquire has entered them or
    /// afterwards; and one of them is lost.
    #[test]
    fn h451_locks_of_one_hold_that_a_renewal_found_are_counted_once() {
        for is_found_first in [true, false] {
            let (_driver, registry, ticket) = registry_of(3, 9);
            let now = registry.clock.now();
            let until = now.plus(ticket.ttl);
            let find = || {
                let one = |lock: &Unwatched| Ticket { locks: vec![lock.clone()], ..ticket.clone() };
                for found in ticket.locks.iter().map(one) {
                    registry.confirm(&found, until, now, true).unwrap();
                }
            };
            if is_found_first {
                find();
                assert_eq!(registry.count(), 3);
            }
            let before = registry.insert_ticket(&ticket, until).unwrap();
            assert_eq!(before.len(), if is_found_first { 3 } else { 0 });
            find();
            assert_eq!(registry.count(), 1, "found first: {is_found_first}");
            let ends = registry.lock().by_end.len();
            assert_eq!(ends, 1, "an end of no hold, found first: {is_found_first}");
            let room = |locks| registry.enter(&ticket.owner, 0, locks).is_ok();
            assert!(room(6) && !room(7), "counted twice, found first: {is_found_first}");
            // Of a hold that is lost in part, nothing remains.
            assert!(registry.forget_ticket(&ticket).is_some());
            assert!(room(9));
            let state = registry.lock();
            assert!(state.by_end.is_empty() && state.by_lock.is_empty() && state.holds.is_empty());
        }
    }
}
