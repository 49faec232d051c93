//! One of many leads, for threads that wait.

use std::fmt;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use latchwork_core::{Error, FencingToken, Leader, block_on};

use super::Guard;

/// An election; see [`Election`](crate::Election).
#[derive(Debug, Clone)]
#[must_use = "an election does nothing until somebody campaigns or looks"]
pub struct Election(pub(super) latchwork_core::Election);

impl Election {
    /// See [`Election::candidate`](crate::Election::candidate).
    pub fn candidate(self, text: impl Into<Arc<str>>) -> Self {
        Self(self.0.candidate(text))
    }

    /// See [`Election::ttl`](crate::Election::ttl).
    pub fn ttl(self, ttl: Duration) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// See [`Election::max_hold`](crate::Election::max_hold).
    pub fn max_hold(self, longest: Duration) -> Self {
        Self(self.0.max_hold(longest))
    }

    /// See [`Election::look_every`](crate::Election::look_every).
    pub fn look_every(self, pause: Duration) -> Self {
        Self(self.0.look_every(pause))
    }

    /// See [`Election::campaign`](crate::Election::campaign).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn campaign(&self) -> Result<Leadership, Error> {
        block_on(None, self.0.campaign()).map(Leadership::new)
    }

    /// See [`Election::campaign_within`](crate::Election::campaign_within).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn campaign_within(&self, limit: Duration) -> Result<Leadership, Error> {
        block_on(None, self.0.campaign_within(limit)).map(Leadership::new)
    }

    /// See [`Election::try_campaign`](crate::Election::try_campaign).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_campaign(&self) -> Result<Option<Leadership>, Error> {
        Ok(block_on(None, self.0.try_campaign())?.map(Leadership::new))
    }

    /// See [`Election::leader`](crate::Election::leader).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn leader(&self) -> Result<Option<Leader>, Error> {
        block_on(None, self.0.leader())
    }

    /// Who leads now, and from then on each change; see [`Election::observe`](crate::Election::observe).
    pub fn observe(&self) -> Changes {
        Changes(Box::pin(self.0.observe()))
    }
}

/// Who leads, as an iterator that waits for each change and never ends.
pub struct Changes(Pin<Box<dyn Stream<Item = Result<Option<Leader>, Error>> + Send>>);

impl Iterator for Changes {
    type Item = Result<Option<Leader>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        block_on(None, self.0.next())
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Changes")
    }
}

/// A leadership: a [`Guard`] with a term; see [`Leadership`](crate::Leadership).
#[derive(Debug)]
#[must_use = "dropping the leadership resigns it"]
pub struct Leadership(Guard);

impl Leadership {
    fn new(leadership: latchwork_core::Leadership) -> Self {
        Self(Guard(leadership.into()))
    }

    /// See [`Leadership::term`](crate::Leadership::term).
    pub fn term(&self) -> FencingToken {
        self.0.token()
    }

    /// See [`Leadership::resign`](crate::Leadership::resign).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn resign(self) -> Result<(), Error> {
        self.0.release()
    }
}

impl Deref for Leadership {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}
