//! A mutex that its owner may acquire again.

use std::sync::Arc;
use std::time::Duration;

use crate::hold::guard::Guard;
use crate::hold::owner::Owner;
use crate::hold::owners::Visit;
use crate::locks::lock::Lock;
use crate::runtime::call::Unpolled;
use crate::wait::patience::{Patience, timed_out};
use latchwork_store::{Error, Moment};

/// A mutex that its owner may acquire again.
///
/// Use it if a function that locks calls another one that locks the same key. If you can pass the
/// guard down instead, a plain [mutex](crate::LockManager::mutex) is clearer.
///
/// The first acquire takes the lock at the store. Each further one by the same [`Owner`] is counted
/// in this process, sends no request, and returns a guard of its own at once. The lock is released
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
/// # use latchwork::{Driver, LockManager, Owner};
/// # use latchwork::store::MemoryBackend;
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
/// # Ok::<(), latchwork::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug, Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct ReentrantMutex(Lock);

impl ReentrantMutex {
    pub(crate) fn new(lock: Lock) -> Self {
        Self(lock)
    }

    /// Sets the ttl: how long the store keeps the lock without a renewal.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// Serves waiters of all processes first come, first served; see [`Lock::fair`].
    pub fn fair(self) -> Self {
        Self(self.0.fair())
    }

    /// Sets the description of the holder that other clients and `latchwork show` display.
    pub fn holder(self, text: impl Into<Arc<str>>) -> Self {
        Self(self.0.holder(text))
    }

    /// Sets the maximum hold time, counted from the owner's first acquire. The lock is then lost
    /// even if guards are alive.
    pub fn max_hold(self, longest: Duration) -> Self {
        Self(self.0.max_hold(longest))
    }

    /// Sets how long the key stays closed after a hold that ended without a release; see
    /// [`Lock::lock_delay`].
    pub fn lock_delay(self, delay: Duration) -> Self {
        Self(self.0.lock_delay(delay))
    }

    /// Acquires the lock again if `owner` holds it, or if it is free now, without waiting.
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
        if let Some(guard) = visit.enter(self.0.engine()) {
            return Ok(Some(guard));
        }
        // Another call of the same owner is at the store: it is not for this one to wait for it.
        let Ok(_turn) = visit.turn().try_lock() else { return Ok(None) };
        if let Some(guard) = visit.enter(self.0.engine()) {
            return Ok(Some(guard));
        }
        Ok(self.0.try_acquire().await?.map(|guard| visit.begin(guard)))
    }

    /// Acquires the lock again if `owner` holds it; otherwise waits for it without a limit.
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

    /// Acquires the lock again if `owner` holds it; otherwise waits for it at most `limit`.
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
        if let Some(guard) = visit.enter(self.0.engine()) {
            return Ok(guard);
        }
        // One call of an owner at a time goes to the store; the others enter what it got.
        let turn = visit.turn().lock();
        let _turn = match limit {
            None => turn.await,
            Some(limit) => match io.within(limit, turn).await {
                Some(turn) => turn,
                None => {
                    let (key, patience) = (visit.key(), Patience::Within(limit));
                    return Err(timed_out(self.0.engine(), key, patience, None));
                }
            },
        };
        if let Some(guard) = visit.enter(self.0.engine()) {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::locks::manager::LockManager;
    use latchwork_store::MemoryBackend;
    use latchwork_store::testing::paused_io;

    #[tokio::test(start_paused = true)]
    async fn the_table_drops_ended_entries() {
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
