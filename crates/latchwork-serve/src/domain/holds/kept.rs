//! The guards of a hold in the library: of one lock, of several, or of a task of a period.

use std::ops::Range;
use std::time::Duration;

use latchwork::once::Run;
use latchwork::{Error, FencingToken, Guard, HoldState, MultiGuard};
use latchwork_store::{Key, Moment};

use super::release::ReleaseKind;

/// The guards that the library gave for a hold. Dropping them releases in the background.
#[derive(Debug)]
pub(crate) enum Guards {
    One(Guard),
    Several(MultiGuard),
    Task(Run),
}

impl Guards {
    fn guards(&self) -> &[Guard] {
        match self {
            Self::One(guard) => std::slice::from_ref(guard),
            Self::Several(guards) => guards.guards(),
            Self::Task(run) => std::slice::from_ref(&**run),
        }
    }

    /// The end of the first of the store's leases.
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

    /// The guard of the one lock; none of several locks, or of a task.
    pub(crate) fn one(&self) -> Option<&Guard> {
        match self {
            Self::One(guard) => Some(guard),
            Self::Several(_) | Self::Task(_) => None,
        }
    }

    /// The same to change it.
    pub(crate) fn one_mut(&mut self) -> Option<&mut Guard> {
        match self {
            Self::One(guard) => Some(guard),
            Self::Several(_) | Self::Task(_) => None,
        }
    }

    /// The period of a task, in wall-clock time since 1970.
    pub(crate) fn period(&self) -> Option<Range<Duration>> {
        match self {
            Self::Task(run) => Some(run.period()),
            Self::One(_) | Self::Several(_) => None,
        }
    }

    /// Ends the hold as its client asks, until the store answers or the lease is over. A lock has no success.
    ///
    /// # Errors
    ///
    /// As [`Guard::release_until_answered`].
    pub(crate) async fn end(self, kind: ReleaseKind, failed: impl Fn(&Error)) -> Result<(), Error> {
        match (self, kind) {
            (Self::One(guard), _) => guard.release_until_answered(failed).await,
            (Self::Several(guards), _) => guards.release_until_answered(failed).await,
            (Self::Task(run), ReleaseKind::Release) => run.fail_until_answered(failed).await,
            (Self::Task(run), ReleaseKind::Succeed) => run.succeed_until_answered(failed).await,
        }
    }
}
