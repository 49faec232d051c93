//! What a hold is to the library: a lock, several, or a task of a period.

use std::ops::Range;
use std::time::Duration;

use latchwork::once::Run;
use latchwork::store::{Key, Moment};
use latchwork::{Error, FencingToken, Guard, HoldState, MultiGuard};

/// What the library holds for a client. Dropping it releases in the background.
#[derive(Debug)]
pub(crate) enum Held {
    One(Guard),
    Several(MultiGuard),
    Task(Run),
}

impl Held {
    fn guards(&self) -> &[Guard] {
        match self {
            Self::One(guard) => std::slice::from_ref(guard),
            Self::Several(guards) => guards.guards(),
            Self::Task(run) => std::slice::from_ref(&**run),
        }
    }

    /// Until when the store's leases allow to rely on all of it.
    pub(crate) fn valid_until(&self) -> Moment {
        self.guards().iter().map(Guard::valid_until).min().unwrap_or(Moment::from_nanos(0))
    }

    /// The worst state of its locks.
    pub(crate) fn state(&self) -> HoldState {
        match self {
            Self::One(guard) => guard.state(),
            Self::Several(guards) => guards.state(),
            Self::Task(run) => run.state(),
        }
    }

    /// Its keys, each with its token.
    pub(crate) fn locks(&self) -> impl Iterator<Item = (&Key, FencingToken)> {
        self.guards().iter().map(|guard| (guard.key(), guard.token()))
    }

    /// The period of a task, in wall-clock time since 1970.
    pub(crate) fn period(&self) -> Option<Range<Duration>> {
        match self {
            Self::Task(run) => Some(run.period()),
            Self::One(_) | Self::Several(_) => None,
        }
    }

    /// Releases it: a task is open for others again.
    ///
    /// # Errors
    ///
    /// As [`Guard::release`].
    pub(crate) async fn release(self) -> Result<(), Error> {
        match self {
            Self::One(guard) => guard.release().await,
            Self::Several(guards) => guards.release().await,
            Self::Task(run) => run.fail().await,
        }
    }
}
