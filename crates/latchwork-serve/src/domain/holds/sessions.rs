//! What this instance remembers of sessions: the holds that it has granted or found. The store decides which there are.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use latchwork::Unwatched;
use latchwork_store::Holder;

use super::id::HoldId;
use super::origin::SessionNumber;
use super::ticket::Ticket;

/// The holds of each session, as far as this instance knows.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<HashMap<SessionNumber, KnownSession>>);

#[derive(Debug)]
struct KnownSession {
    /// The hold that is the session itself.
    own: HoldId,
    holds: HashMap<HoldId, Arc<Ticket>>,
    /// That of the hold that was added last.
    holder: Option<Holder>,
}

impl KnownSession {
    fn of(session: &Ticket) -> Self {
        Self { own: session.id(), holds: HashMap::new(), holder: None }
    }

    /// Adds a hold. A thousand of them say the same of their holder: they share one text.
    fn add(&mut self, hold: Ticket) -> Arc<Ticket> {
        let holder = hold.locks.first().map(Unwatched::holder);
        if self.holder.as_ref() != holder {
            self.holder = holder.cloned();
        }
        let hold = Arc::new(match &self.holder {
            Some(holder) => hold.with_holder(holder),
            None => hold,
        });
        self.holds.insert(hold.id(), hold.clone());
        hold
    }
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, HashMap<SessionNumber, KnownSession>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a hold to its session.
    pub(crate) fn remember(&self, session: &Ticket, hold: &Ticket) {
        let Some(number) = session.session() else { return };
        let mut sessions = self.lock();
        let known = sessions.entry(number).or_insert_with(|| KnownSession::of(session));
        // A renewal may have found its locks before, each by itself.
        for id in hold.ids() {
            known.holds.remove(&id);
        }
        known.add(hold.clone());
    }

    /// Adds locks that were found at the store, each a hold by itself, and returns all holds that are not among those
    /// `before`. A lock of a hold that was granted meanwhile belongs to that one.
    pub(crate) fn remember_found(
        &self,
        session: &Ticket,
        found: Vec<Ticket>,
        before: &HashSet<HoldId>,
    ) -> Vec<Arc<Ticket>> {
        let Some(number) = session.session() else { return Vec::new() };
        let mut sessions = self.lock();
        let known = sessions.entry(number).or_insert_with(|| KnownSession::of(session));
        let meanwhile = known.holds.values().filter(|it| !before.contains(&it.id()));
        let mut new: Vec<_> = meanwhile.cloned().collect();
        let granted: HashSet<_> = new.iter().flat_map(|it| it.ids()).collect();
        for hold in found.into_iter().filter(|it| !granted.contains(&it.id())) {
            new.push(known.add(hold));
        }
        new
    }

    /// A hold was changed: another one takes its place.
    pub(crate) fn replace(&self, before: &Ticket, after: &Ticket) {
        let Some(number) = before.session() else { return };
        if let Some(known) = self.lock().get_mut(&number) {
            known.holds.remove(&before.id());
            known.add(after.clone());
        }
    }

    /// The holds of a session.
    pub(crate) fn holds(&self, number: SessionNumber) -> Vec<Arc<Ticket>> {
        let sessions = self.lock();
        let known = sessions.get(&number);
        known.map(|known| known.holds.values().cloned().collect()).unwrap_or_default()
    }

    /// Removes a hold that has ended.
    pub(crate) fn forget(&self, ticket: &Ticket) {
        let Some(number) = ticket.session() else { return };
        if let Some(known) = self.lock().get_mut(&number) {
            // One that was found has each of its locks by itself.
            for id in ticket.ids() {
                known.holds.remove(&id);
            }
        }
    }

    /// Removes a session that has ended.
    pub(crate) fn remove(&self, number: SessionNumber) {
        self.lock().remove(&number);
    }

    /// Removes the sessions that this instance no longer sees.
    pub(crate) fn sweep(&self, is_known: impl Fn(HoldId) -> bool) {
        self.lock().retain(|_, known| is_known(known.own));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use latchwork::FencingToken;
    use latchwork_store::{ClaimId, Key, Mode};

    use super::super::origin::Origin;
    use super::*;

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

    /// H451: a renewal finds the locks of a hold at the store, each by itself, while the acquire enters it.
    #[test]
    fn h451_a_hold_of_several_locks_is_renewed_once() {
        let (sessions, number) = (Sessions::default(), SessionNumber(1));
        let (session, several) = (hold(1, number), hold(3, number));
        let one = |lock: &Unwatched| Ticket { locks: vec![lock.clone()], ..several.clone() };
        let found = || several.locks.iter().map(one).collect::<Vec<_>>();
        let none = HashSet::new();
        assert_eq!(sessions.remember_found(&session, found(), &none).len(), 3);
        sessions.remember(&session, &several);
        assert_eq!(sessions.holds(number), [Arc::new(several.clone())], "found before");
        // A renewal that knew nothing of it learns of the hold, also if its list had none of the locks.
        for found in [found(), Vec::new()] {
            let new = sessions.remember_found(&session, found, &none);
            assert_eq!(new, [Arc::new(several.clone())], "found afterwards");
            assert_eq!(sessions.holds(number).len(), 1);
        }
        sessions.forget(&several);
        assert!(sessions.holds(number).is_empty());
    }
}
