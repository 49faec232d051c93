//! Several locks, all or none, for threads that wait.

use std::time::Duration;

use latchwork_core::{Error, FencingToken, HoldState, Lost, NotHeld, block_on};

use super::Lock;

/// Several locks, all or none; see [`MultiLock`](crate::MultiLock).
#[derive(Debug, Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct MultiLock(pub(super) latchwork_core::MultiLock);

impl MultiLock {
    /// See [`MultiLock::of`](crate::MultiLock::of).
    pub fn of(locks: impl IntoIterator<Item = Lock>) -> Self {
        Self(latchwork_core::MultiLock::of(locks.into_iter().map(|lock| lock.0)))
    }

    /// See [`MultiLock::try_acquire`](crate::MultiLock::try_acquire).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_acquire(&self) -> Result<Option<MultiGuard>, Error> {
        Ok(block_on(None, self.0.try_acquire())?.map(MultiGuard))
    }

    /// See [`MultiLock::acquire`](crate::MultiLock::acquire).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn acquire(&self) -> Result<MultiGuard, Error> {
        block_on(None, self.0.acquire()).map(MultiGuard)
    }

    /// See [`MultiLock::acquire_within`](crate::MultiLock::acquire_within).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn acquire_within(&self, limit: Duration) -> Result<MultiGuard, Error> {
        block_on(None, self.0.acquire_within(limit)).map(MultiGuard)
    }
}

/// Several locks that are held together; see [`MultiGuard`](crate::MultiGuard).
#[derive(Debug)]
#[must_use = "dropping the guard releases the locks"]
pub struct MultiGuard(latchwork_core::MultiGuard);

impl MultiGuard {
    /// Each key with the number to give to its resource.
    pub fn tokens(&self) -> impl Iterator<Item = (&str, FencingToken)> {
        self.0.tokens()
    }

    /// How long all may be counted on if none is renewed again.
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// What the hold of all is right now, by the clock: as good as the worst of them.
    pub fn state(&self) -> HoldState {
        self.0.state()
    }

    /// See [`MultiGuard::ensure_held`](crate::MultiGuard::ensure_held).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn ensure_held(&self) -> Result<(), NotHeld> {
        self.0.ensure_held()
    }

    /// Waits until one of them has ended otherwise than by a release.
    pub fn lost(&self) -> Lost {
        block_on(None, self.0.lost())
    }

    /// See [`MultiGuard::not_held`](crate::MultiGuard::not_held).
    pub fn not_held(&self) -> NotHeld {
        block_on(None, self.0.not_held())
    }

    /// See [`MultiGuard::release`](crate::MultiGuard::release).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn release(self) -> Result<(), Error> {
        block_on(None, self.0.release())
    }
}
