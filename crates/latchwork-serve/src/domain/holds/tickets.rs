//! What this instance remembers of holds that their clients keep: for limits, lists and events. The store decides what
//! is held.

use std::time::Duration;

use latchwork::{FencingToken, Unwatched};
use latchwork_store::validity::drift;
use latchwork_store::{Key, Moment};

use super::ended::{EndedHold, Ending};
use super::hold_status::HoldStatus;
use super::id::HoldId;
use super::kept::Kept;
use super::registry::{Hold, Registry, Seen, State, weight};
use super::release::{ReleaseKind, ReleaseOutcome};
use super::ticket::{Packed, PackedLock, Ticket};
use super::validity::promised;
use crate::domain::refusal::Refusal;

/// When a hold that nobody renews is looked for at the store before its end: a tenth of its lease.
const LAST_PART: u32 = 10;

/// When it is looked for once more: a fiftieth of its lease before its end, and the drift of the clocks is half of that.
/// A hold that another instance has released before is not lost.
const LAST_LOOK: u32 = 50;

/// The shortest pause between two looks, as a part of the ttl: a store may count in whole seconds, and say 0.
const SHORTEST_PAUSE: u32 = 100;

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

impl Registry {
    /// When this instance looks after a hold whose lease is restarted now: at its end; before it, if another instance may
    /// renew it.
    fn review_at(&self, ticket: &Ticket) -> Moment {
        self.review_with(ticket, ticket.max_left(self.clock.wall()))
    }

    fn review_with(&self, ticket: &Ticket, left: Option<Duration>) -> Moment {
        let (now, lease) = (self.clock.now(), ticket.lease());
        let at = match self.is_shared {
            true => now.plus(lease - lease / LAST_PART),
            false => now.plus(lease).plus(drift(lease)),
        };
        left.map_or(at, |left| at.min(now.plus(left)))
    }

    /// A guard keeps the hold of this ticket from now on, or no longer.
    pub(crate) fn lend(&self, ticket: &Ticket, is_lent: bool) {
        let id = ticket.id();
        let mut state = self.lock();
        let Some(hold) = state.holds.get_mut(id) else { return };
        let lent = hold.lent;
        hold.lent = if is_lent { lent.saturating_add(1) } else { lent.saturating_sub(1) };
        let goes_on = hold.lent > 0;
        let left = hold.kept.known().and_then(|known| known.packed.max_left(self.clock.wall()));
        for (key, token) in ticket.tokens() {
            // The library tells of a loss.
            match goes_on {
                true => state.by_lock.insert((key.clone(), token), id),
                false => state.by_lock.remove(&(key.clone(), token)),
            };
        }
        state.holds.set_end(id, self.review_with(ticket, left));
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
        let (mut is_new, mut is_first) = (false, false);
        let review = self.review_at(ticket);
        if let Some(hold) = state.holds.get_mut(id) {
            if let Kept::Ticket(known) = &mut hold.kept {
                if !renewed {
                    until = until.max(known.until);
                }
                known.until = until;
                if renewed && ticket.max_end.is_some() {
                    // Its end may stand by the clock of another instance.
                    known.packed = Packed::new(ticket);
                }
                if renewed {
                    hold.seen = Seen::No;
                }
                let end = if renewed { review } else { hold.end.max(until.min(review)) };
                is_first = state.holds.set_end(id, end);
            }
        } else if renewed && self.has_room(&state, ticket) {
            // Of another instance, or of the life before this one.
            let since = now.minus(wall.saturating_sub(ticket.since));
            let holder = ticket.locks.first().map(Unwatched::holder);
            let of = state.common(&ticket.owner, holder);
            let hold = Hold::of_ticket(of, ticket, until, review, since);
            is_first = state.enter(&ticket.ids().collect::<Vec<_>>(), hold);
            is_new = true;
        }
        drop(state);
        if is_first {
            self.sooner.notify_one();
        }
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

    /// Whether the hold of another instance can be entered: its owner has not too many here, and none of its locks belongs
    /// to another hold.
    fn has_room(&self, state: &State, ticket: &Ticket) -> bool {
        let is_known = |id| state.holds.get(id).is_some() || state.others.contains(&id);
        let locks = ticket.tokens().map(|(key, _)| weight(key.as_str())).sum();
        !ticket.ids().any(is_known) && state.has_room(&ticket.owner, locks, self.limits.holds)
    }

    /// How a hold has ended that the store does not have.
    pub(crate) fn gone(&self, ticket: &Ticket) -> Ending {
        let (now, wall) = (self.clock.now(), self.clock.wall());
        let state = self.lock();
        let known = state.holds.get(ticket.id()).and_then(|hold| hold.kept.known());
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

    /// Keeps how the hold of a ticket has ended, and removes it. Returns what this instance had of it: the hold, or some of
    /// its locks as holds of their own.
    pub(crate) fn end_ticket(&self, ticket: &Ticket, ending: Ending) -> Vec<Hold> {
        let now = self.clock.now();
        let mut state = self.lock();
        let removed = ticket.ids().filter_map(|id| state.remove(now, id, ending, &self.names));
        let removed = removed.collect();
        state.end_all(now, ticket, ending, &self.names);
        drop(state);
        self.fewer.notify_waiters();
        removed
    }

    /// Removes a hold that another instance may have released. Returns it if this instance had it.
    pub(crate) fn forget_ticket(&self, ticket: &Ticket) -> Option<Hold> {
        let hold = self.lock().forget(ticket.id(), self.clock.now());
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
        let hold = self.end_ticket(ticket, ending).pop();
        self.lock().ended.succeed(ticket.id(), successor);
        Ok((hold, lasted))
    }

    /// Removes the holds of tickets that an administrator has taken away: those of this key with one of these tokens.
    pub(crate) fn forced(&self, key: &Key, tokens: &[FencingToken]) -> Vec<(Hold, Ending)> {
        let now = self.clock.now();
        let mut state = self.lock();
        let numbers: Vec<_> = tokens.iter().map(|token| token.grant_number()).collect();
        let is_one = |it: PackedLock<'_>| {
            it.key == key.as_str() && numbers.contains(&it.token.grant_number())
        };
        let is_taken =
            |hold: &Hold| hold.kept.known().is_some_and(|it| it.packed.locks().any(is_one));
        let taken: Vec<_> = state.holds.iter().filter(|(_, hold)| is_taken(hold)).collect();
        let taken: Vec<_> = taken.into_iter().map(|(id, _)| id).collect();
        let removed = taken.into_iter().filter_map(|id| {
            state.remove(now, id, Ending::Forced, &self.names).map(|hold| (hold, Ending::Forced))
        });
        removed.collect()
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
        let hold = state.holds.get_mut(id)?;
        let ttl = hold.ttl();
        let Kept::Ticket(known) = &mut hold.kept else { return None };
        let end = match sighting {
            Sighting::Held { left, until } => {
                known.until = known.until.max(*until);
                // With more than the last part, another instance has renewed it.
                let next = [LAST_PART, LAST_LOOK].map(|part| ttl / part);
                let next = next.into_iter().find(|next| *left > *next + *next / 2);
                hold.seen = if next.is_none() { Seen::NearEnd } else { Seen::Held };
                let pause = next.map_or_else(|| *left + drift(ttl), |next| *left - next);
                now.plus(pause.max(ttl / SHORTEST_PAUSE))
            }
            Sighting::Silence if now.since(known.until) < PATIENCE => now.plus(AGAIN),
            // Other instances may have renewed it all the time: only the store knows.
            Sighting::Silence => return state.forget(id, now).map(|hold| (hold, None)),
            Sighting::Gone => {
                let is_late = match hold.seen {
                    Seen::No => known.until <= now,
                    Seen::Held => false,
                    Seen::NearEnd => true,
                };
                if is_late {
                    let ending = Ending::NotRenewed;
                    let hold = state.remove(now, id, ending, &self.names)?;
                    return Some((hold, Some(ending)));
                }
                return state.forget(id, now).map(|hold| (hold, None));
            }
        };
        state.holds.set_end(id, end);
        None
    }

    /// Keeps a new hold of a ticket. A renewal of its session may have entered its locks before: returns those entries.
    /// If the request has a name, its repeats ask for the whole ticket.
    ///
    /// # Errors
    ///
    /// `Closed` if the service stops.
    pub(crate) fn insert_ticket(
        &self,
        ticket: &Ticket,
        until: Moment,
        is_named: bool,
    ) -> Result<Vec<Hold>, Refusal> {
        let (now, end) = (self.clock.now(), self.review_at(ticket));
        let holder = ticket.locks.first().filter(|_| is_named).map(Unwatched::holder);
        let of = self.lock().common(&ticket.owner, holder);
        let ids: Vec<_> = ticket.ids().collect();
        self.keep(&ids, Hold::of_ticket(of, ticket, until, end, now))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::holds::registry::Limits;
    use crate::domain::names::Names;
    use latchwork::Driver;
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

    /// H534: a client has not renewed for nine tenths of its ttl, and releases through another instance. The store has not
    /// the hold any more, as after its end.
    #[test]
    fn h534_a_release_elsewhere_shortly_before_the_end_is_no_loss() {
        let (_driver, registry, ticket) = registry_of(1, 1);
        let now = registry.clock.now();
        let sight = |left: u64| {
            let left = Duration::from_millis(left);
            registry.sighted(ticket.id(), &Sighting::Held { left, until: now.plus(left) })
        };
        for (looks, is_lost) in
            [(vec![1_000], false), (vec![1_400, 180], true), (vec![9_000], false)]
        {
            registry.insert_ticket(&ticket, now.plus(ticket.ttl), false).unwrap();
            looks.iter().for_each(|left| assert!(sight(*left).is_none()));
            let (_, ending) = registry.sighted(ticket.id(), &Sighting::Gone).unwrap();
            assert_eq!(ending, is_lost.then_some(Ending::NotRenewed), "{looks:?}");
        }
        registry.insert_ticket(&ticket, now.plus(ticket.ttl), false).unwrap();
        assert!(sight(0).is_none());
        let (.., next) = registry.remove_late();
        assert!(
            next >= now.plus(ticket.ttl / 100),
            "a store that says 0 is not asked at once again"
        );
    }

    /// H441: a renewal of the session finds the claim at the store before the acquire has entered it.
    #[test]
    fn h441_a_hold_that_a_renewal_entered_first_is_counted_once() {
        let (_driver, registry, ticket) = registry_of(1, 1);
        let now = registry.clock.now();
        let until = now.plus(ticket.ttl);
        assert!(registry.confirm(&ticket, until, now, true).ok().unwrap().is_new);
        assert_eq!(registry.insert_ticket(&ticket, until, false).unwrap().len(), 1);
        // An end of no hold would turn the loop without a pause.
        assert!(registry.remove_late().2 > now && registry.count() == 1);
        registry.forget_ticket(&ticket).unwrap();
        assert!(registry.enter(&ticket.owner, 0, 1).is_ok(), "counted twice");
        assert_eq!(registry.remove_late().2, Moment::NEVER, "an end of no hold");
    }

    /// The change of a client that repeats it while the first request still waits.
    #[test]
    fn a_hold_is_lent_until_the_last_change_of_it_is_over() {
        let (_driver, registry, ticket) = registry_of(1, 1);
        registry.insert_ticket(&ticket, registry.clock.now().plus(ticket.ttl), false).unwrap();
        let is_lent = || !registry.lock().by_lock.is_empty();
        for (lends, after) in [(true, true), (true, true), (false, true), (false, false)] {
            registry.lend(&ticket, lends);
            assert_eq!(is_lent(), after);
        }
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
            let before = registry.insert_ticket(&ticket, until, false).unwrap();
            assert_eq!(before.len(), if is_found_first { 3 } else { 0 });
            find();
            assert_eq!(registry.count(), 1, "found first: {is_found_first}");
            let room = |locks| registry.enter(&ticket.owner, 0, locks).is_ok();
            assert!(room(6) && !room(7), "counted twice, found first: {is_found_first}");
            // Of a hold that is lost in part, nothing remains.
            assert!(registry.forget_ticket(&ticket).is_some());
            assert!(room(9));
            let state = registry.lock();
            assert!(state.others.is_empty() && state.holds.len() == 0);
        }
    }
}
