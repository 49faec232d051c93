//! What a hold is to the library: a lock, several, or a task of a period.

use std::ops::Range;
use std::time::Duration;

use latchwork::once::Run;
use latchwork::store::{Key, Moment};
use latchwork::{Error, FencingToken, Guard, HoldState, MultiGuard};

use super::release::How;

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

    /// Ends it as its client asks, until the store answers or the lease is over. A lock has no success.
    ///
    /// # Errors
    ///
    /// As [`Guard::release_until_answered`].
    pub(crate) async fn end(self, how: How, failed: impl Fn(&Error)) -> Result<(), Error> {
        match (self, how) {
            (Self::One(guard), _) => guard.release_until_answered(failed).await,
            (Self::Several(guards), _) => guards.release_until_answered(failed).await,
            (Self::Task(run), How::Release) => run.fail_until_answered(failed).await,
            (Self::Task(run), How::Succeed) => run.succeed_until_answered(failed).await,
        }
    }
}
