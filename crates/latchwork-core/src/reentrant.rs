//! A mutex that its owner may enter again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::acquire::{Patience, timed_out};
use crate::call::Unpolled;
use crate::clock::Moment;
use crate::error::Error;
use crate::guard::Guard;
use crate::key::Key;
use crate::lease::HoldState;
use crate::lock::Lock;
use crate::owner::Owner;
use crate::watchdog::Watched;

/// A mutex whose owner may acquire it again while it holds it.
///
/// Use it where a function that locks calls another one that locks the same key. Where you can pass
/// the guard down instead, a plain [mutex](crate::LockManager::mutex) says more.
///
/// The first acquire takes the lock at the store; each further one by the same [`Owner`] counts in
/// this process, costs no trip and answers at once with a guard of its own. The lock is released
/// when the last of them is released or dropped, in whatever order.
///
/// # Guarantees
///
/// All guards of an owner's hold have the same token and are lost together. Once a hold was lost,
/// the next acquire asks the store for a new one, with a larger token, and the guards of the lost
/// one stay lost.
///
/// An owner is known within one manager and its clones; to other processes, managers and owners it
/// is a mutex like any other, on the same key. The options of the acquire that took the lock count
/// for the whole hold.
///
/// # Examples
///
/// ```
/// # use latchwork_core::{Driver, LockManager, MemoryBackend, Owner};
/// # let driver = Driver::start().unwrap();
/// # let locks = LockManager::new(MemoryBackend::new(driver.io()), driver);
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let me = Owner::named("order 17");
/// let account = locks.reentrant("account/9");
/// let outer = account.acquire(&me).await?;
/// let inner = account.acquire(&me).await?;
/// assert_eq!(outer.token(), inner.token());
/// drop(outer);
/// assert!(locks.mutex("account/9").try_acquire().await?.is_none(), "still held");
/// inner.release().await?;
/// # Ok::<(), latchwork_core::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug, Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct ReentrantMutex(Lock);

impl ReentrantMutex {
    pub(crate) fn new(lock: Lock) -> Self {
        Self(lock)
    }

    /// How long the store keeps the lock without hearing of the holder.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// First come, first served over all processes; see [`Lock::fair`].
    pub fn fair(self) -> Self {
        Self(self.0.fair())
    }

    /// Who this is, for people who ask the store.
    pub fn holder(self, text: impl Into<Arc<str>>) -> Self {
        Self(self.0.holder(text))
    }

    /// The longest hold, from the first acquire on.
    pub fn max_hold(self, longest: Duration) -> Self {
        Self(self.0.max_hold(longest))
    }

    /// Enters the lock if `owner` holds it, or acquires it if it is free now.
    ///
    /// # Errors
    ///
    /// As [`Lock::try_acquire`].
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::try_acquire`]; an owner that had the lock before has it still.
    pub async fn try_acquire(&self, owner: &Owner) -> Result<Option<Guard>, Error> {
        self.call(owner, |this, owner| async move { this.try_here(&owner).await }).await
    }

    async fn try_here(&self, owner: &Owner) -> Result<Option<Guard>, Error> {
        let visit = self.visit(owner)?;
        if let Some(guard) = self.enter(&visit) {
            return Ok(Some(guard));
        }
        // Another call of the same owner is at the store: it is not for this one to wait for it.
        let Ok(_turn) = visit.slot().turn.try_lock() else { return Ok(None) };
        if let Some(guard) = self.enter(&visit) {
            return Ok(Some(guard));
        }
        Ok(self.0.try_acquire().await?.map(|guard| visit.begin(guard)))
    }

    /// Enters the lock if `owner` holds it, or acquires it, however long that takes.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`].
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`]; an owner that had the lock before has it still.
    pub async fn acquire(&self, owner: &Owner) -> Result<Guard, Error> {
        self.acquire_with(owner, None).await
    }

    /// Enters the lock if `owner` holds it, or acquires it if that is possible within `limit`.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire_within`].
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`]; an owner that had the lock before has it still.
    pub async fn acquire_within(&self, owner: &Owner, limit: Duration) -> Result<Guard, Error> {
        self.acquire_with(owner, Some(limit)).await
    }

    async fn acquire_with(&self, owner: &Owner, limit: Option<Duration>) -> Result<Guard, Error> {
        let now = self.0.engine().io.now();
        let deadline = limit.map_or(Moment::NEVER, |limit| now.plus(limit));
        let acquire = move |this: Self, owner| async move {
            this.acquire_here(&owner, limit, deadline).await
        };
        self.call(owner, acquire).await
    }

    /// Makes one call of it: while it waits it may have its owner's turn, which another call of the
    /// owner needs.
    async fn call<T, F>(
        &self,
        owner: &Owner,
        mut make: impl FnMut(Self, Owner) -> F,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let (engine, key) = (self.0.engine(), self.0.key()?);
        let call = engine.call(Unpolled::BeginsAnew, |_| make(self.clone(), owner.clone()));
        let answer = call.await;
        engine.told(answer, Some(key))
    }

    async fn acquire_here(
        &self,
        owner: &Owner,
        limit: Option<Duration>,
        deadline: Moment,
    ) -> Result<Guard, Error> {
        let io = &self.0.engine().io;
        let visit = self.visit(owner)?;
        // Before its turn: the turn may be with a call that nobody polls any more.
        if let Some(guard) = self.enter(&visit) {
            return Ok(guard);
        }
        // One call of an owner at a time goes to the store; the others enter what it got.
        let turn = visit.slot().turn.lock();
        let _turn = match limit {
            None => turn.await,
            Some(limit) => match io.within(limit, turn).await {
                Some(turn) => turn,
                None => {
                    let (key, patience) = (&visit.name.0, Patience::Within(limit));
                    return Err(timed_out(self.0.engine(), key, patience, None));
                }
            },
        };
        if let Some(guard) = self.enter(&visit) {
            return Ok(guard);
        }
        let guard = match limit {
            None => self.0.acquire().await?,
            Some(limit) => self.0.acquire_until(deadline, limit).await?,
        };
        Ok(visit.begin(guard))
    }

    fn visit(&self, owner: &Owner) -> Result<Visit, Error> {
        let engine = self.0.engine();
        let key = self.0.key()?.clone();
        engine.check_open(Some(&key))?;
        Ok(engine.owners.visit(key, owner.clone()))
    }

    /// One more guard of the hold that the owner has, if it has one.
    fn enter(&self, visit: &Visit) -> Option<Guard> {
        let engine = self.0.engine();
        let mut hold = visit.slot().lock();
        let held = hold.as_mut()?;
        if matches!(engine.judge(&held.watched), HoldState::Lost(_)) {
            return None;
        }
        held.guards += 1;
        let (watched, index) = (held.watched.clone(), held.index);
        drop(hold);
        let entry = Entry { visit: visit.clone(), watched: watched.clone() };
        Some(Guard::new(engine.clone(), watched, index).entered(entry))
    }
}

/// What the owners of a manager hold.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    slots: Mutex<HashMap<(Key, Owner), Arc<Slot>>>,
}

/// One owner's hold of one key.
#[derive(Debug, Default)]
struct Slot {
    /// Whose call goes to the store.
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

    fn visit(self: &Arc<Self>, key: Key, owner: Owner) -> Visit {
        let name = (key, owner);
        let slot = self.lock().entry(name.clone()).or_default().clone();
        Visit { owners: self.clone(), name, slot: Some(slot) }
    }

    /// How many owners hold something or are about to.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.lock().len()
    }
}

/// A use of a slot; the last one to go takes the slot out of the table.
#[derive(Debug)]
struct Visit {
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
    fn slot(&self) -> &Slot {
        self.slot.as_deref().expect("taken by the drop alone")
    }

    /// Notes a hold that has just begun.
    fn begin(&self, guard: Guard) -> Guard {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::LockManager;
    use crate::memory::MemoryBackend;
    use crate::testing::paused_io;

    #[tokio::test(start_paused = true)]
    async fn the_table_forgets_who_has_gone() {
        let (io, _) = paused_io();
        let locks = LockManager::on_io(MemoryBackend::new(io.clone()), io.clone());
        let mutex = locks.reentrant("k");
        let owners = mutex.0.engine().owners.clone();
        let (me, you) = (Owner::named("me"), Owner::named("you"));
        let outer = mutex.acquire(&me).await.unwrap();
        let inner = mutex.acquire(&me).await.unwrap();
        assert!(mutex.try_acquire(&you).await.unwrap().is_none());
        mutex.acquire_within(&you, Duration::from_secs(1)).await.unwrap_err();
        assert!(io.within(Duration::from_secs(1), mutex.acquire(&you)).await.is_none());
        assert_eq!(owners.len(), 1, "who failed has gone");
        drop(outer);
        assert_eq!(owners.len(), 1, "one guard is left");
        inner.release().await.unwrap();
        assert_eq!(owners.len(), 0);
    }
}
