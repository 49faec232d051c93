//! Locks that hold one key, for threads that wait.

use std::sync::Arc;
use std::time::Duration;

use latchwork_core::{AdaptiveTtl, Error, Key, block_on};

use super::Guard;

/// A lock that can be acquired; see [`Lock`](crate::Lock).
#[derive(Debug, Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock(pub(super) latchwork_core::Lock);

impl From<latchwork_core::Lock> for Lock {
    fn from(lock: latchwork_core::Lock) -> Self {
        Self(lock)
    }
}

impl Lock {
    /// See [`Lock::ttl`](crate::Lock::ttl).
    pub fn ttl(self, ttl: Duration) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// See [`Lock::fair`](crate::Lock::fair).
    pub fn fair(self) -> Self {
        Self(self.0.fair())
    }

    /// See [`Lock::adaptive_ttl`](crate::Lock::adaptive_ttl).
    pub fn adaptive_ttl(self, bounds: AdaptiveTtl) -> Self {
        Self(self.0.adaptive_ttl(bounds))
    }

    /// See [`Lock::holder`](crate::Lock::holder).
    pub fn holder(self, text: impl Into<Arc<str>>) -> Self {
        Self(self.0.holder(text))
    }

    /// See [`Lock::max_hold`](crate::Lock::max_hold).
    pub fn max_hold(self, longest: Duration) -> Self {
        Self(self.0.max_hold(longest))
    }

    /// See [`Lock::try_acquire`](crate::Lock::try_acquire).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        Ok(block_on(None, self.0.try_acquire())?.map(Guard))
    }

    /// See [`Lock::acquire`](crate::Lock::acquire).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn acquire(&self) -> Result<Guard, Error> {
        block_on(self.0.doorbell(), self.0.acquire()).map(Guard)
    }

    /// See [`Lock::acquire_within`](crate::Lock::acquire_within).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn acquire_within(&self, limit: Duration) -> Result<Guard, Error> {
        block_on(self.0.doorbell(), self.0.acquire_within(limit)).map(Guard)
    }

    /// See [`Lock::key`](crate::Lock::key).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn key(&self) -> Result<&Key, Error> {
        self.0.key()
    }
}

/// Many readers or one writer; see [`RwLock`](crate::RwLock).
#[derive(Debug, Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct RwLock(pub(super) latchwork_core::RwLock);

impl RwLock {
    /// The lock as a reader wants it: together with other readers.
    pub fn read(&self) -> Lock {
        Lock(self.0.read())
    }

    /// The lock as a writer wants it: alone.
    pub fn write(&self) -> Lock {
        Lock(self.0.write())
    }
}

/// A limited number of permits; see [`Semaphore`](crate::Semaphore).
#[derive(Debug, Clone)]
#[must_use = "a semaphore does nothing until it is acquired"]
pub struct Semaphore(pub(super) latchwork_core::Semaphore);

impl Semaphore {
    /// One permit.
    pub fn permit(&self) -> Lock {
        Lock(self.0.permit())
    }

    /// `take` permits at once, all or none.
    pub fn permits(&self, take: u32) -> Lock {
        Lock(self.0.permits(take))
    }
}
