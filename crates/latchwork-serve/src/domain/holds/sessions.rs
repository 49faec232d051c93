//! What this instance remembers of sessions: the holds that it has granted or found. The store decides which there are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, HashMap<SessionNumber, KnownSession>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a hold to its session.
    pub(crate) fn remember(&self, session: &Ticket, hold: &Ticket) {
        let (Some(number), own) = (session.session(), session.id()) else { return };
        let mut sessions = self.lock();
        let known =
            sessions.entry(number).or_insert_with(|| KnownSession { own, holds: HashMap::new() });
        known.holds.insert(hold.id(), Arc::new(hold.clone()));
    }

    /// A hold was changed: another one takes its place.
    pub(crate) fn replace(&self, before: &Ticket, after: &Ticket) {
        let Some(number) = before.session() else { return };
        if let Some(known) = self.lock().get_mut(&number) {
            known.holds.remove(&before.id());
            known.holds.insert(after.id(), Arc::new(after.clone()));
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
            for lock in &ticket.locks {
                known.holds.remove(&HoldId::of(lock.id()));
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
