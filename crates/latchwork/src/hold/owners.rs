//! The holds of reentrant mutexes: their owners, and how often each has acquired them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use latchwork_store::Key;

use super::engine::Engine;
use super::guard::Guard;
use super::lease::HoldState;
use super::owner::Owner;
use super::watched::Watched;

/// What the owners of a manager hold.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    slots: Mutex<HashMap<(Key, Owner), Arc<Slot>>>,
}

/// One owner's hold of one key.
#[derive(Debug, Default)]
struct Slot {
    /// Serialises the calls that go to the store.
    turn: tokio::sync::Mutex<()>,
    hold: Mutex<Option<OwnHold>>,
}

#[derive(Debug)]
struct OwnHold {
    watched: Arc<Watched>,
    /// How often the store's grant was handed over before it came to this owner.
    index: u32,
    guards: usize,
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, Option<OwnHold>> {
        self.hold.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Owners {
    fn lock(&self) -> MutexGuard<'_, HashMap<(Key, Owner), Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn visit(self: &Arc<Self>, key: Key, owner: Owner) -> Visit {
        let name = (key, owner);
        let slot = self.lock().entry(name.clone()).or_default().clone();
        Visit { owners: self.clone(), name, slot: Some(slot) }
    }

    /// How many owners hold something or are about to.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }
}

/// A use of a slot; the last one to go takes the slot out of the table.
#[derive(Debug)]
pub(crate) struct Visit {
    owners: Arc<Owners>,
    name: (Key, Owner),
    /// Given up under the table's lock, so that the last one sees that it is.
    slot: Option<Arc<Slot>>,
}

impl Clone for Visit {
    fn clone(&self) -> Self {
        // Under the table's lock, where the last one looks how many there are.
        let _table = self.owners.lock();
        Self { owners: self.owners.clone(), name: self.name.clone(), slot: self.slot.clone() }
    }
}

impl Visit {
    pub(crate) fn key(&self) -> &Key {
        &self.name.0
    }

    /// The right to go to the store for this owner.
    pub(crate) fn turn(&self) -> &tokio::sync::Mutex<()> {
        &self.slot().turn
    }

    /// One more guard of the hold that the owner has, if it has one.
    pub(crate) fn enter(&self, engine: &Arc<Engine>) -> Option<Guard> {
        let mut hold = self.slot().lock();
        let held = hold.as_mut()?;
        if matches!(engine.judge(&held.watched), HoldState::Lost(_)) {
            return None;
        }
        held.guards += 1;
        let (watched, index) = (held.watched.clone(), held.index);
        drop(hold);
        let entry = Entry { visit: self.clone(), watched: watched.clone() };
        Some(Guard::new(engine.clone(), watched, index).entered(entry))
    }

    fn slot(&self) -> &Slot {
        self.slot.as_deref().expect("taken by the drop alone")
    }

    /// Notes a hold that has just begun.
    pub(crate) fn begin(&self, guard: Guard) -> Guard {
        let (watched, index) = guard.hold();
        let watched = watched.clone();
        *self.slot().lock() = Some(OwnHold { watched: watched.clone(), index, guards: 1 });
        guard.entered(Entry { visit: self.clone(), watched })
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut table = self.owners.lock();
        drop(self.slot.take());
        // The table's alone: nobody holds through the slot or asks for it.
        if table.get(&self.name).is_some_and(|slot| Arc::strong_count(slot) == 1) {
            table.remove(&self.name);
        }
    }
}

/// A guard's share in its owner's hold.
#[derive(Debug)]
pub(crate) struct Entry {
    visit: Visit,
    watched: Arc<Watched>,
}

impl Entry {
    /// Takes the guard out of the count; `true` if it was the last of its hold.
    pub(crate) fn leave(&self) -> bool {
        let mut hold = self.visit.slot().lock();
        let same = hold.as_mut().filter(|held| Arc::ptr_eq(&held.watched, &self.watched));
        // A hold that was lost and followed by another one has nothing left to release.
        let Some(held) = same else { return true };
        held.guards -= 1;
        if held.guards > 0 {
            return false;
        }
        *hold = None;
        true
    }
}
