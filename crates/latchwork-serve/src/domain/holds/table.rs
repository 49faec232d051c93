//! The holds of the service, close together in memory: 72 bytes for each, and 14 to 20 for its places by id and by end.

use hashbrown::HashTable;
use latchwork_store::Moment;

use super::id::HoldId;
use super::registry::Hold;

/// The place in the heap of a hold that is only remembered for its session.
const NOWHERE: u32 = u32::MAX;

/// Holds by their ids, and in the order of their ends. The holds of a session have a number each, and stay when they have
/// ended, until a renewal of the session has reported it.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// By number.
    slots: Vec<Option<(HoldId, Hold)>>,
    /// By number: the place in the heap.
    places: Vec<u32>,
    free: Vec<u32>,
    by_id: HashTable<u32>,
    /// A heap of numbers: the hold at its top ends first.
    by_end: Vec<u32>,
}

/// Room for one more, but not for twice as many.
fn push<T>(all: &mut Vec<T>, one: T) {
    if all.len() == all.capacity() {
        all.reserve_exact(all.len() / 8 + 8);
    }
    all.push(one);
}

impl Table {
    fn slot(&self, number: u32) -> Option<&(HoldId, Hold)> {
        self.slots.get(number as usize)?.as_ref()
    }

    fn find(&self, id: HoldId) -> Option<u32> {
        let is_it = |number: &u32| self.slot(*number).is_some_and(|(it, _)| *it == id);
        self.by_id.find(id.hash(), is_it).copied()
    }

    fn is_held(&self, number: u32) -> bool {
        self.places[number as usize] != NOWHERE
    }

    /// The hold with this number, also if it is only remembered.
    pub(super) fn at(&self, number: u32) -> Option<(HoldId, &Hold)> {
        self.slot(number).map(|(id, hold)| (*id, hold))
    }

    pub(super) fn get(&self, id: HoldId) -> Option<&Hold> {
        let number = self.find(id).filter(|number| self.is_held(*number))?;
        self.slot(number).map(|(_, hold)| hold)
    }

    /// To change all but the end.
    pub(super) fn get_mut(&mut self, id: HoldId) -> Option<&mut Hold> {
        let number = self.find(id).filter(|number| self.is_held(*number))?;
        self.slots[number as usize].as_mut().map(|(_, hold)| hold)
    }

    pub(super) fn len(&self) -> usize {
        self.by_end.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (HoldId, &Hold)> {
        self.by_end.iter().filter_map(|number| self.at(*number))
    }

    /// The hold that ends first.
    pub(super) fn first(&self) -> Option<(Moment, HoldId)> {
        self.iter().next().map(|(id, hold)| (hold.end, id))
    }

    /// Adds a hold. Returns whether it ends before all others.
    pub(super) fn insert(&mut self, id: HoldId, hold: Hold) -> bool {
        let end = hold.end;
        let number = match self.find(id) {
            Some(number) => {
                if let Some((_, known)) = &mut self.slots[number as usize] {
                    // What its session knows of it stays.
                    let (of, in_session) = match known.in_session {
                        true => (known.of.clone(), true),
                        false => (hold.of.clone(), false),
                    };
                    *known = Hold { of, in_session, ..hold };
                }
                number
            }
            None => self.add(id, hold),
        };
        if !self.is_held(number) {
            self.places[number as usize] = self.by_end.len() as u32;
            push(&mut self.by_end, number);
        }
        self.set_end(id, end)
    }

    fn add(&mut self, id: HoldId, hold: Hold) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            push(&mut self.slots, None);
            push(&mut self.places, NOWHERE);
            self.slots.len() as u32 - 1
        });
        self.slots[number as usize] = Some((id, hold));
        let slots = &self.slots;
        let hash = |number: &u32| slots[*number as usize].as_ref().map_or(0, |(id, _)| id.hash());
        self.by_id.insert_unique(id.hash(), number, hash);
        number
    }

    /// When a hold has ended that is only remembered for its session; `None` for one that was never here.
    pub(super) fn ended_at(&self, number: u32) -> Option<Moment> {
        let (_, hold) = self.slot(number).filter(|_| !self.is_held(number))?;
        Some(hold.end).filter(|end| *end != Moment::NEVER)
    }

    /// Removes a hold. Its session goes on remembering it.
    pub(super) fn remove(&mut self, id: HoldId, now: Moment) -> Option<Hold> {
        let number = self.find(id).filter(|number| self.is_held(*number))?;
        let place = std::mem::replace(&mut self.places[number as usize], NOWHERE) as usize;
        self.by_end.swap_remove(place);
        if let Some(moved) = self.by_end.get(place) {
            self.places[*moved as usize] = place as u32;
            self.settle(place);
        }
        if let Some((_, hold)) = &mut self.slots[number as usize]
            && let Some(removed) = hold.remembered()
        {
            hold.end = now;
            return Some(removed);
        }
        self.free(number)
    }

    fn free(&mut self, number: u32) -> Option<Hold> {
        let (id, hold) = self.slots[number as usize].take()?;
        if let Ok(entry) = self.by_id.find_entry(id.hash(), |it| *it == number) {
            entry.remove();
        }
        self.free.push(number);
        if self.free.len() == self.slots.len() {
            // Nothing of a burst stays.
            *self = Self::default();
        }
        Some(hold)
    }

    /// Remembers a hold for its session, whether or not it goes on. Returns its number, and whether it had one.
    pub(super) fn remember(&mut self, id: HoldId, hold: Hold) -> (u32, bool) {
        let Some(number) = self.find(id) else {
            return (self.add(id, Hold { in_session: true, ..hold }), false);
        };
        let known = self.slots[number as usize].as_mut().map(|(_, known)| {
            known.of = hold.of;
            std::mem::replace(&mut known.in_session, true)
        });
        (number, known.unwrap_or(false))
    }

    /// Remembers a hold no longer for its session. Returns its number if it did.
    pub(super) fn forget(&mut self, id: HoldId) -> Option<u32> {
        let number = self.find(id)?;
        let (_, hold) = self.slots[number as usize].as_mut()?;
        let was_in_session = std::mem::replace(&mut hold.in_session, false);
        if !self.is_held(number) {
            self.free(number);
        }
        was_in_session.then_some(number)
    }

    /// Sets the end of a hold. Returns whether it ends before all others.
    pub(super) fn set_end(&mut self, id: HoldId, end: Moment) -> bool {
        let Some(number) = self.find(id).filter(|number| self.is_held(*number)) else {
            return false;
        };
        if let Some((_, hold)) = &mut self.slots[number as usize] {
            hold.end = end;
        }
        self.settle(self.places[number as usize] as usize);
        self.places[number as usize] == 0
    }

    fn end_at(&self, place: usize) -> Moment {
        let hold = self.by_end.get(place).and_then(|number| self.slot(*number));
        hold.map_or(Moment::NEVER, |(_, hold)| hold.end)
    }

    /// Moves what is at this place of the heap to where it belongs.
    fn settle(&mut self, mut place: usize) {
        while place > 0 && self.end_at(place) < self.end_at((place - 1) / 2) {
            self.swap(place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
        loop {
            let (left, right) = (2 * place + 1, 2 * place + 2);
            let least = if self.end_at(right) < self.end_at(left) { right } else { left };
            if least >= self.by_end.len() || self.end_at(place) <= self.end_at(least) {
                return;
            }
            self.swap(place, least);
            place = least;
        }
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.by_end.swap(one, other);
        for place in [one, other] {
            self.places[self.by_end[place] as usize] = place as u32;
        }
    }

    /// All holds, which are no longer in it.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Hold> + use<> {
        let Self { slots, places, .. } = std::mem::take(self);
        let held = places.into_iter().map(|place| place != NOWHERE);
        slots
            .into_iter()
            .zip(held)
            .filter_map(|(slot, is_held)| slot.filter(|_| is_held))
            .map(|it| it.1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::time::Duration;

    use latchwork::{Driver, FencingToken, Unwatched};
    use latchwork_services::hostile::held;
    use latchwork_store::{ClaimId, Holder, Key, Mode, random_u128};

    use super::*;
    use crate::domain::holds::claims::{Claims, GrantedHold, Outcome};
    use crate::domain::holds::origin::{Origin, SessionNumber};
    use crate::domain::holds::registry::{Limits, Registry};
    use crate::domain::holds::ticket::Ticket;
    use crate::domain::names::Names;

    const TTL: Duration = Duration::from_secs(15);

    fn ticket(name: &str, session: Option<SessionNumber>) -> Ticket {
        // Each request has texts of its own.
        let origin = Origin::of(&"web".into(), session).write();
        let text = "web at 10.0.0.7 through locks-1";
        let holder = Holder::new(text).with(|it| it.origin = Some(origin.into()));
        let (id, token) = (ClaimId::random(), FencingToken::from_raw(1_838_670_718_159_656_960));
        let key = Key::new(name).unwrap();
        let since = Duration::from_millis(1_800_000_000_123);
        let locks = vec![Unwatched::new(key, id, Mode::Exclusive, token, TTL, holder)];
        Ticket { owner: "web".into(), locks, ttl: TTL, since, max_end: None, period: None }
    }

    fn hold(ticket: &Ticket, end: u64) -> Hold {
        let (end, start) = (Moment::from_nanos(end), Moment::from_nanos(0));
        let of = crate::domain::holds::registry::State::default().common(&ticket.owner, None);
        Hold::of_ticket(of, ticket, start, end, start)
    }

    #[test]
    fn holds_come_in_the_order_of_their_ends() {
        let (mut table, mut model) = (Table::default(), BTreeMap::new());
        let one = ticket("x", None);
        let below = |limit: usize| random_u128() as usize % limit;
        for _ in 0..20_000 {
            let (end, ids) = (random_u128() as u64 >> 1, model.keys().copied().collect::<Vec<_>>());
            let known = (!ids.is_empty()).then(|| ids[below(ids.len().max(1))]);
            match (below(5), known) {
                (0 | 1, Some(number)) => {
                    table.set_end(HoldId::of(ClaimId::from_u128(number)), Moment::from_nanos(end));
                    model.insert(number, end);
                }
                (2, Some(number)) => {
                    let now = Moment::from_nanos(0);
                    assert!(table.remove(HoldId::of(ClaimId::from_u128(number)), now).is_some());
                    model.remove(&number);
                }
                _ if ids.len() < 100 => {
                    let number = random_u128();
                    table.insert(HoldId::of(ClaimId::from_u128(number)), hold(&one, end));
                    model.insert(number, end);
                }
                _ => {}
            }
            let first = table.first().map(|(end, id)| (end.as_nanos(), id.claim().as_u128()));
            assert_eq!(first, model.iter().map(|(number, end)| (*end, *number)).min());
            assert_eq!(table.len(), model.len());
        }
    }

    /// A hold that has ended stays for its session alone, and comes back as the same one.
    #[test]
    fn a_session_remembers_an_ended_hold() {
        let (mut table, one) = (Table::default(), ticket("x", None));
        let (id, now) = (one.id(), Moment::from_nanos(7));
        table.insert(id, hold(&one, 1));
        let (number, was_there) = table.remember(id, hold(&one, 9));
        assert!(!was_there && table.remember(id, hold(&one, 9)) == (number, true));
        assert_eq!(table.ended_at(number), None);
        assert!(table.remove(id, now).is_some() && table.remove(id, now).is_none());
        assert_eq!(table.ended_at(number), Some(now));
        assert!(table.get(id).is_none() && table.at(number).is_some() && table.first().is_none());
        table.insert(id, hold(&one, 2));
        assert_eq!((table.len(), table.get(id).unwrap().in_session), (1, true));
        assert_eq!(table.forget(id), Some(number));
        assert!(table.forget(id).is_none() && table.remove(id, now).is_some());
        assert!(table.at(number).is_none() && table.slots.is_empty());
    }

    /// How many bytes of the heap each of so many holds takes, after it was granted and after it was renewed.
    async fn bytes(count: usize, session: Option<SessionNumber>, is_named: bool) -> [usize; 2] {
        let driver = Driver::start().unwrap();
        let limits = Limits { holds: count + 1, waiters: 1 };
        let registry = Registry::new(driver.io().clock().clone(), limits, Names::new(""), true);
        let (claims, own) = (Arc::<Claims>::default(), ticket("session", session));
        let now = registry.clock.now();
        let (until, before) = (now.plus(TTL), held());
        let each = || held().wrapping_sub(before) / count;
        for number in 0..count {
            let ticket = ticket(&format!("held/{}/{}", number / 50, number % 50), session);
            registry.insert_ticket(&ticket, until, is_named).unwrap();
            if session.is_some() {
                registry.remember(&own, &ticket);
            }
            if is_named {
                let granted = Arc::new(GrantedHold { id: ticket.id(), text: "sealed".into() });
                let granted = move || async move { Ok(Outcome::Hold(granted)) };
                let name = (ticket.owner.clone(), format!("6f1c8a52-0000-4000-8000-{number:012}"));
                let mut request =
                    claims.join(name, [7; 32], Duration::ZERO, 1, granted, |_| {}).ok().unwrap();
                request.outcome().await.ok().unwrap();
            }
        }
        let granted = each();
        for ticket in session.iter().flat_map(|number| registry.holds_of(*number)) {
            registry.confirm(&ticket, until.plus(TTL), now, true).unwrap();
        }
        assert_eq!(registry.count(), count);
        [granted, each()]
    }

    /// The hold is the store's. The counts are those before and after tables grow.
    #[tokio::test]
    async fn a_hold_takes_less_than_200_bytes() {
        for (what, session, is_named) in [
            ("a ticket", None, false),
            ("a ticket with an Idempotency-Key", None, true),
            ("a hold in a session", Some(SessionNumber(7)), false),
        ] {
            for count in [1_000, 7_000, 7_200, 10_000, 50_000] {
                let each = bytes(count, session, is_named).await;
                tracing::info!("{what}, one of {count}: {each:?} bytes");
                assert!(each.iter().all(|it| (40..200).contains(it)), "{what}, {count}: {each:?}");
            }
        }
    }

    #[test]
    fn the_entry_of_a_hold_is_small() {
        assert_eq!(size_of::<Option<(HoldId, Hold)>>(), 72);
    }
}
