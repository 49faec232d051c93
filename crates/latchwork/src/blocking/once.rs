//! A task that is done once in each period, for threads that wait.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use latchwork_core::{
    Error, FencingToken, HoldState, NotHeld, OnceOutcome, Reset, Skipped, block_on,
};

/// A task that is done once in each period; see [`Once`](crate::Once).
#[derive(Debug, Clone)]
#[must_use = "a task does nothing until it is begun"]
pub struct Once(pub(super) latchwork_core::Once);

/// What became of a try to begin.
#[derive(Debug)]
pub enum Begun {
    /// The task is ours.
    Run(Run),
    /// There is nothing to do.
    Skipped(Skipped),
}

impl From<latchwork_core::Begun> for Begun {
    fn from(begun: latchwork_core::Begun) -> Self {
        match begun {
            latchwork_core::Begun::Run(run) => Self::Run(Run(run)),
            latchwork_core::Begun::Skipped(why) => Self::Skipped(why),
        }
    }
}

impl Once {
    /// See [`Once::ttl`](crate::Once::ttl).
    pub fn ttl(self, ttl: Duration) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// See [`Once::holder`](crate::Once::holder).
    pub fn holder(self, text: impl Into<Arc<str>>) -> Self {
        Self(self.0.holder(text))
    }

    /// See [`Once::max_hold`](crate::Once::max_hold).
    pub fn max_hold(self, longest: Duration) -> Self {
        Self(self.0.max_hold(longest))
    }

    /// See [`Once::try_begin`](crate::Once::try_begin).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_begin(&self) -> Result<Begun, Error> {
        block_on(None, self.0.try_begin()).map(Begun::from)
    }

    /// See [`Once::begin_within`](crate::Once::begin_within).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn begin_within(&self, limit: Duration) -> Result<Begun, Error> {
        block_on(None, self.0.begin_within(limit)).map(Begun::from)
    }

    /// See [`Once::reset`](crate::Once::reset).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn reset(&self) -> Result<Reset, Error> {
        block_on(None, self.0.reset())
    }

    /// Does the task if it was not done in this period and nobody is at it; `Ok` closes the period.
    ///
    /// A thread cannot be stopped: where the lock is lost during the work, the outcome is
    /// [`OnceOutcome::DoneNotClosed`]. Ask [`Run::ensure_held`] before each step that matters.
    ///
    /// # Errors
    ///
    /// As [`Once::try_begin`](crate::Once::try_begin). What goes wrong later is told in the outcome.
    pub fn run<T, E>(
        &self,
        work: impl FnOnce(&Run) -> Result<T, E>,
    ) -> Result<OnceOutcome<T, E>, Error> {
        let run = match self.try_begin()? {
            Begun::Run(run) => run,
            Begun::Skipped(why) => return Ok(OnceOutcome::Skipped(why)),
        };
        let result = work(&run);
        Ok(run.finish(result))
    }
}

/// The task, as long as it is ours; see [`Run`](crate::Run).
#[derive(Debug)]
#[must_use = "dropping the run gives the task up"]
pub struct Run(latchwork_core::Run);

impl Run {
    /// See [`Run::period`](crate::Run::period).
    pub fn period(&self) -> Range<Duration> {
        self.0.period()
    }

    /// The number to give to the resource.
    pub fn token(&self) -> FencingToken {
        self.0.token()
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

    /// See [`Run::finish`](crate::Run::finish).
    pub fn finish<T, E>(self, result: Result<T, E>) -> OnceOutcome<T, E> {
        block_on(None, self.0.finish(result))
    }

    /// See [`Run::succeed`](crate::Run::succeed).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn succeed(self) -> Result<(), Error> {
        block_on(None, self.0.succeed())
    }

    /// See [`Run::fail`](crate::Run::fail).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn fail(self) -> Result<(), Error> {
        block_on(None, self.0.fail())
    }
}
