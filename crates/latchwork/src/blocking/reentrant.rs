//! A mutex that its owner may enter again, for threads that wait.

use std::sync::Arc;
use std::time::Duration;

use latchwork_core::{Error, Owner, block_on};

use super::Guard;

/// A mutex that its owner may enter again; see [`ReentrantMutex`](crate::ReentrantMutex).
///
/// The owner is the calling thread. Where work moves between threads, name one with
/// [`acquire_as`](ReentrantMutex::acquire_as).
#[derive(Debug, Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct ReentrantMutex(pub(super) latchwork_core::ReentrantMutex);

impl ReentrantMutex {
    /// See [`Lock::ttl`](crate::Lock::ttl).
    pub fn ttl(self, ttl: Duration) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// See [`Lock::fair`](crate::Lock::fair).
    pub fn fair(self) -> Self {
        Self(self.0.fair())
    }

    /// See [`Lock::holder`](crate::Lock::holder).
    pub fn holder(self, text: impl Into<Arc<str>>) -> Self {
        Self(self.0.holder(text))
    }

    /// See [`ReentrantMutex::max_hold`](crate::ReentrantMutex::max_hold).
    pub fn max_hold(self, longest: Duration) -> Self {
        Self(self.0.max_hold(longest))
    }

    /// See [`ReentrantMutex::try_acquire`](crate::ReentrantMutex::try_acquire).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        self.try_acquire_as(&Owner::current_thread())
    }

    /// See [`ReentrantMutex::acquire`](crate::ReentrantMutex::acquire).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn acquire(&self) -> Result<Guard, Error> {
        self.acquire_as(&Owner::current_thread())
    }

    /// See [`ReentrantMutex::acquire_within`](crate::ReentrantMutex::acquire_within).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn acquire_within(&self, limit: Duration) -> Result<Guard, Error> {
        self.acquire_within_as(&Owner::current_thread(), limit)
    }

    /// As [`try_acquire`](ReentrantMutex::try_acquire), for this owner.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_acquire_as(&self, owner: &Owner) -> Result<Option<Guard>, Error> {
        Ok(block_on(None, self.0.try_acquire(owner))?.map(Guard))
    }

    /// As [`acquire`](ReentrantMutex::acquire), for this owner.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn acquire_as(&self, owner: &Owner) -> Result<Guard, Error> {
        block_on(None, self.0.acquire(owner)).map(Guard)
    }

    /// As [`acquire_within`](ReentrantMutex::acquire_within), for this owner.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn acquire_within_as(&self, owner: &Owner, limit: Duration) -> Result<Guard, Error> {
        block_on(None, self.0.acquire_within(owner, limit)).map(Guard)
    }
}
