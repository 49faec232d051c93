//! What this instance remembers of sessions: the holds that it has granted or found. The store decides which there are.

use std::collections::HashSet;

use latchwork::Unwatched;
use latchwork_store::Moment;

use super::ended::KEPT;
use super::id::HoldId;
use super::origin::SessionNumber;
use super::registry::{Hold, Registry, State};
use super::ticket::Ticket;

/// The holds of a session, as far as this instance knows.
#[derive(Debug)]
pub(super) struct KnownSession {
    /// The hold that is the session itself.
    own: HoldId,
    /// The numbers of its holds in the table. Those that have ended are among them until a renewal has reported it, or
    /// for as long as their ends are kept: another instance may renew the session.
    holds: Vec<u32>,
    /// With so many numbers, those of ended holds are removed at once.
    most: usize,
}

/// How many ended holds of a session are remembered at least, if they ended within the time for which ends are kept.
const ENDED: usize = 1_000;

/// The streams of one session at this instance, while there are some.
#[derive(Debug, Default)]
pub(super) struct Streams {
    open: usize,
    newest: u64,
}

impl State {
    /// Remembers a hold for its session.
    fn remember(&mut self, number: SessionNumber, session: HoldId, ticket: &Ticket) {
        let of = self.common(&ticket.owner, ticket.locks.first().map(Unwatched::holder));
        // If it is not held here, only its ticket counts.
        let (end, since) = (Moment::NEVER, Moment::from_nanos(0));
        let hold = Hold::of_ticket(of, ticket, since, end, since);
        let (place, was_there) = self.holds.remember(ticket.id(), hold);
        if !was_there {
            let new = || KnownSession { own: session, holds: Vec::new(), most: ENDED };
            self.sessions.entry(number).or_insert_with(new).holds.push(place);
        }
    }

    /// Forgets the hold of a session, and each of its locks.
    fn leave(&mut self, number: SessionNumber, ticket: &Ticket) {
        for id in ticket.ids() {
            let (place, known) = (self.holds.forget(id), self.sessions.get_mut(&number));
            if let (Some(place), Some(known)) = (place, known)
                && let Some(at) = known.holds.iter().position(|it| *it == place)
            {
                known.holds.swap_remove(at);
            }
        }
    }

    fn tickets(&self, number: SessionNumber) -> impl Iterator<Item = Ticket> {
        let places = self.sessions.get(&number).into_iter().flat_map(|known| &known.holds);
        places.filter_map(|place| self.holds.at(*place)).filter_map(|(id, hold)| hold.ticket(id))
    }

    fn remove_session(&mut self, number: SessionNumber) {
        let places = self.sessions.remove(&number).into_iter().flat_map(|known| known.holds);
        for place in places {
            if let Some((id, _)) = self.holds.at(place) {
                self.holds.forget(id);
            }
        }
    }

    /// Forgets the holds of a session that ended at a time of this kind. A renewal finds at the store what there is.
    fn forget_ended(&mut self, number: SessionNumber, is_over: impl Fn(Moment) -> bool) {
        let Some(known) = self.sessions.get_mut(&number) else { return };
        let holds = std::mem::take(&mut known.holds);
        let is_ended = |place: &u32| self.holds.ended_at(*place).is_some_and(&is_over);
        let (ended, mut goes_on): (Vec<_>, Vec<_>) = holds.into_iter().partition(is_ended);
        goes_on.shrink_to_fit();
        (known.most, known.holds) = (2 * goes_on.len() + ENDED, goes_on);
        for place in ended {
            if let Some((id, _)) = self.holds.at(place) {
                self.holds.forget(id);
            }
        }
    }

    /// Removes the sessions of which this instance no longer sees anything, and of the others the holds that ended long
    /// ago.
    pub(super) fn sweep_sessions(&mut self, now: Moment) {
        for number in self.sessions.keys().copied().collect::<Vec<_>>() {
            self.forget_ended(number, |end| now.since(end) >= KEPT);
        }
        let goes_on = |id| self.holds.get(id).is_some();
        let is_seen = |known: &KnownSession| {
            let mut holds = known.holds.iter().filter_map(|place| self.holds.at(*place));
            goes_on(known.own) || holds.any(|(id, _)| goes_on(id))
        };
        let over = self.sessions.iter().filter(|(_, known)| !is_seen(known));
        let over: Vec<_> = over.map(|(number, _)| *number).collect();
        over.into_iter().for_each(|number| self.remove_session(number));
    }
}

impl Registry {
    /// A stream of a session begins; returns its number.
    pub(crate) fn open_stream(&self, session: SessionNumber) -> u64 {
        let mut state = self.lock();
        let streams = state.streams.entry(session).or_default();
        streams.open += 1;
        streams.newest += 1;
        streams.newest
    }

    /// A stream of a session ends; returns whether none was begun after it.
    pub(crate) fn close_stream(&self, session: SessionNumber, stream: u64) -> bool {
        let mut state = self.lock();
        let Some(streams) = state.streams.get_mut(&session) else { return true };
        let is_newest = streams.newest == stream;
        streams.open -= 1;
        if streams.open == 0 {
            state.streams.remove(&session);
        }
        is_newest
    }

    /// Adds a hold to its session. A renewal may have found its locks before, each by itself.
    pub(crate) fn remember(&self, session: &Ticket, hold: &Ticket) {
        let Some(number) = session.session() else { return };
        let mut state = self.lock();
        state.leave(number, hold);
        state.remember(number, session.id(), hold);
        if state.sessions.get(&number).is_some_and(|known| known.holds.len() > known.most) {
            state.forget_ended(number, |_| true);
        }
    }

    /// Adds locks that were found at the store, each a hold by itself, and returns all holds that are not among those
    /// `before`. A lock of a hold that was granted meanwhile belongs to that one.
    pub(crate) fn remember_found(
        &self,
        session: &Ticket,
        found: Vec<Ticket>,
        before: &HashSet<HoldId>,
    ) -> Vec<Ticket> {
        let Some(number) = session.session() else { return Vec::new() };
        let mut state = self.lock();
        let meanwhile = state.tickets(number).filter(|it| !before.contains(&it.id()));
        let mut new: Vec<_> = meanwhile.collect();
        let granted: HashSet<_> = new.iter().flat_map(Ticket::ids).collect();
        for hold in found.into_iter().filter(|it| !granted.contains(&it.id())) {
            state.remember(number, session.id(), &hold);
            new.push(hold);
        }
        new
    }

    /// A hold was changed: another one takes its place.
    pub(crate) fn replace_in_session(&self, before: &Ticket, after: &Ticket) {
        let Some(number) = before.session() else { return };
        let mut state = self.lock();
        if let Some(own) = state.sessions.get(&number).map(|known| known.own) {
            state.leave(number, before);
            state.remember(number, own, after);
        }
    }

    /// The holds of a session.
    pub(crate) fn holds_of(&self, number: SessionNumber) -> Vec<Ticket> {
        self.lock().tickets(number).collect()
    }

    /// A hold of a session has ended, and a renewal has reported it.
    pub(crate) fn leave_session(&self, ticket: &Ticket) {
        if let Some(number) = ticket.session() {
            self.lock().leave(number, ticket);
        }
    }

    /// Removes a session that has ended.
    pub(crate) fn remove_session(&self, number: SessionNumber) {
        self.lock().remove_session(number);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use latchwork::{Driver, FencingToken};
    use latchwork_services::hostile::held;
    use latchwork_store::testing::PausedClock;
    use latchwork_store::{ClaimId, Clock as _, Holder, Key, Mode};

    use super::super::origin::Origin;
    use super::super::registry::Limits;
    use super::super::tickets::Sighting;
    use super::*;
    use crate::domain::names::Names;

    /// A hold of so many locks in the session with this number.
    fn hold(locks: usize, number: SessionNumber) -> Ticket {
        let origin = Origin::of(&"me".into(), Some(number)).write();
        let holder = Holder::new("me").with(|it| it.origin = Some(origin.into()));
        let lock = |at| {
            let (key, id) = (Key::new(format!("lock-{at}")).unwrap(), ClaimId::random());
            let (token, lease) = (FencingToken::from_raw(7), Duration::from_secs(10));
            Unwatched::new(key, id, Mode::Exclusive, token, lease, holder.clone())
        };
        Ticket {
            owner: "me".into(),
            locks: (0..locks).map(lock).collect(),
            ttl: Duration::from_secs(10),
            since: Duration::ZERO,
            max_end: None,
            period: None,
        }
    }

    /// H531: a client keeps its session at another instance, and releases there what this one has granted.
    #[test]
    fn h531_a_session_that_is_kept_elsewhere_takes_bounded_memory() {
        let clock = PausedClock::start();
        let limits = Limits { holds: 9, waiters: 1 };
        let registry = Registry::new(clock.clone(), limits, Names::new(""), true);
        let number = SessionNumber(1);
        let (session, kept) = (hold(1, number), hold(1, number));
        let grant = |hold: &Ticket| {
            registry.insert_ticket(hold, clock.now().plus(hold.ttl), false).unwrap();
        };
        grant(&session);
        let remembered = || registry.holds_of(number).len();
        let (before, mut most) = (held(), 0);
        for at in 0..20 * ENDED {
            let one = if at == 0 { kept.clone() } else { hold(1, number) };
            grant(&one);
            registry.remember(&session, &one);
            if at > 0 {
                assert!(matches!(registry.sighted(one.id(), &Sighting::Gone), Some((_, None))));
            }
            most = most.max(held().wrapping_sub(before));
        }
        assert!((1..=ENDED + 3).contains(&remembered()), "{}", remembered());
        assert!(most < 300 * ENDED, "{most} bytes");
        registry.sweep();
        assert!(remembered() > 1, "the next renewal here tells of them");
        clock.suspend(KEPT);
        registry.sweep();
        assert_eq!(registry.holds_of(number), [kept], "the one that goes on");
    }

    /// H451: a renewal finds the locks of a hold at the store, each by itself, while the acquire enters it.
    #[test]
    fn h451_a_hold_of_several_locks_is_renewed_once() {
        let driver = Driver::start().unwrap();
        let (clock, limits) = (driver.io().clock().clone(), Limits { holds: 9, waiters: 1 });
        let registry = Registry::new(clock, limits, Names::new(""), true);
        let number = SessionNumber(1);
        let (session, several) = (hold(1, number), hold(3, number));
        let one = |lock: &Unwatched| Ticket { locks: vec![lock.clone()], ..several.clone() };
        let found = || several.locks.iter().map(one).collect::<Vec<_>>();
        let none = HashSet::new();
        assert_eq!(registry.remember_found(&session, found(), &none).len(), 3);
        registry.remember(&session, &several);
        assert_eq!(registry.holds_of(number), std::slice::from_ref(&several), "found before");
        // A renewal that knew nothing of it learns of the hold, also if its list had none of the locks.
        for found in [found(), Vec::new()] {
            let new = registry.remember_found(&session, found, &none);
            assert_eq!(new, std::slice::from_ref(&several), "found afterwards");
            assert_eq!(registry.holds_of(number).len(), 1);
        }
        registry.leave_session(&several);
        assert!(registry.holds_of(number).is_empty());
    }
}
