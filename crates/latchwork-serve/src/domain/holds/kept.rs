//! A hold is kept by guards in this process, or by its client with a ticket.

use std::ops::Range;
use std::time::Duration;

use latchwork::once::Run;
use latchwork::{Error, FencingToken, Guard, HoldState, MultiGuard};
use latchwork_store::{Key, Moment};

use super::release::ReleaseKind;

/// Who keeps a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeper {
    /// The client: its renewals are those of the store, through any instance that can open the ticket.
    Client,
    /// This process, with guards: the store ties a lock to a process, or the names are too long for a ticket.
    Process,
}

/// A hold as this process keeps it. Dropping guards releases in the background; dropping a ticket does nothing.
#[derive(Debug)]
pub(crate) enum Kept {
    One(Guard),
    Several(MultiGuard),
    Task(Run),
    /// What this instance knows of a hold that its client keeps.
    Ticket(Box<Known>),
}

/// What an instance remembers of a ticket.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) locks: Box<[(Key, FencingToken)]>,
    /// The end of the validity, as the store last told this instance.
    pub(crate) until: Moment,
    pub(crate) period: Option<Range<Duration>>,
    /// When the longest hold is over.
    pub(crate) max_at: Moment,
    /// The store had the hold when this instance asked shortly before its end.
    pub(crate) is_seen: bool,
    /// A guard keeps it meanwhile, for a change.
    pub(crate) is_lent: bool,
}

impl Kept {
    fn guards(&self) -> &[Guard] {
        match self {
            Self::One(guard) => std::slice::from_ref(guard),
            Self::Several(guards) => guards.guards(),
            Self::Task(run) => std::slice::from_ref(&**run),
            Self::Ticket(_) => &[],
        }
    }

    /// The end of the first of the store's leases.
    pub(crate) fn valid_until(&self) -> Moment {
        if let Self::Ticket(known) = self {
            return known.until;
        }
        self.guards().iter().map(Guard::valid_until).min().unwrap_or(Moment::from_nanos(0))
    }

    /// The worst state of its locks.
    pub(crate) fn state(&self) -> HoldState {
        match self {
            Self::One(guard) => guard.state(),
            Self::Several(guards) => guards.state(),
            Self::Task(run) => run.state(),
            // The time or the store ends it.
            Self::Ticket(_) => HoldState::Held,
        }
    }

    /// Its keys, each with its token.
    pub(crate) fn locks(&self) -> impl Iterator<Item = (&Key, FencingToken)> {
        let known: &[_] = self.known().map_or(&[], |known| &known.locks);
        let guards = self.guards().iter().map(|guard| (guard.key(), guard.token()));
        guards.chain(known.iter().map(|(key, token)| (key, *token)))
    }

    /// What is known of a ticket.
    pub(crate) fn known(&self) -> Option<&Known> {
        match self {
            Self::Ticket(known) => Some(known),
            _ => None,
        }
    }

    /// The guard of the one lock; none of several locks, or of a task.
    pub(crate) fn one(&self) -> Option<&Guard> {
        match self {
            Self::One(guard) => Some(guard),
            Self::Several(_) | Self::Task(_) | Self::Ticket(_) => None,
        }
    }

    /// The same to change it.
    pub(crate) fn one_mut(&mut self) -> Option<&mut Guard> {
        match self {
            Self::One(guard) => Some(guard),
            Self::Several(_) | Self::Task(_) | Self::Ticket(_) => None,
        }
    }

    /// The period of a task, in wall-clock time since 1970.
    pub(crate) fn period(&self) -> Option<Range<Duration>> {
        match self {
            Self::Task(run) => Some(run.period()),
            Self::Ticket(known) => known.period.clone(),
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
            // The client's request has the ticket.
            (Self::Ticket(_), _) => Ok(()),
        }
    }
}
