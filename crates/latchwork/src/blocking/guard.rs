//! What is held, for threads that wait.

use std::time::Duration;

use latchwork_core::{Error, FencingToken, HoldState, Key, Lost, Moment, NotHeld, block_on};

/// A lock that is held; see [`Guard`](crate::Guard). Dropping it releases the lock.
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub struct Guard(pub(super) latchwork_core::Guard);

impl Guard {
    /// The key that is held.
    pub fn key(&self) -> &Key {
        self.0.key()
    }

    /// The number to give to the resource.
    pub fn token(&self) -> FencingToken {
        self.0.token()
    }

    /// How long the hold may be counted on if it is not renewed again.
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// The ttl that the store granted last.
    pub fn ttl(&self) -> Duration {
        self.0.ttl()
    }

    /// Until when the hold may be counted on, on the boot clock.
    pub fn valid_until(&self) -> Moment {
        self.0.valid_until()
    }

    /// What the hold is right now, by the clock.
    pub fn state(&self) -> HoldState {
        self.0.state()
    }

    /// See [`Guard::ensure_held`](crate::Guard::ensure_held).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn ensure_held(&self) -> Result<FencingToken, NotHeld> {
        self.0.ensure_held()
    }

    /// Waits until the hold has ended otherwise than by a release.
    pub fn lost(&self) -> Lost {
        block_on(None, self.0.lost())
    }

    /// See [`Guard::not_held`](crate::Guard::not_held).
    pub fn not_held(&self) -> NotHeld {
        block_on(None, self.0.not_held())
    }

    /// See [`Guard::release`](crate::Guard::release).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn release(self) -> Result<(), Error> {
        block_on(None, self.0.release())
    }
}
