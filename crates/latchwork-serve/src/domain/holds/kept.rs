//! A hold is kept by guards in this process, or by its client with a ticket.

use std::ops::Range;
use std::time::Duration;

use latchwork::once::Run;
use latchwork::{Error, FencingToken, Guard, HoldState, MultiGuard};
use latchwork_store::{Key, Moment};

use super::release::ReleaseKind;
use super::ticket::Packed;

/// Who keeps a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeper {
    /// The client: its renewals are those of the store, through any instance that can open the ticket.
    Client,
    /// This process, with guards: the store ties a lock to a process, or the names are too long for a ticket.
    Process,
}

/// What the library has granted. Dropping it releases in the background.
#[derive(Debug)]
pub(crate) enum Granted {
    One(Guard),
    Several(MultiGuard),
    Task(Run),
}

/// A hold as this process keeps it. Dropping guards releases in the background; dropping a ticket does nothing.
#[derive(Debug)]
pub(crate) enum Kept {
    Guards(Box<Granted>),
    /// What this instance knows of a hold that its client keeps.
    Ticket(Known),
}

/// What an instance remembers of a ticket.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(super) packed: Packed,
    /// The end of the validity, as the store last told this instance.
    pub(crate) until: Moment,
}

impl Granted {
    fn guards(&self) -> &[Guard] {
        match self {
            Self::One(guard) => std::slice::from_ref(guard),
            Self::Several(guards) => guards.guards(),
            Self::Task(run) => std::slice::from_ref(&**run),
        }
    }

    /// Its keys, each with its token.
    pub(crate) fn locks(&self) -> Vec<(Key, FencingToken)> {
        self.guards().iter().map(|guard| (guard.key().clone(), guard.token())).collect()
    }

    /// The period of a task, in wall-clock time since 1970.
    pub(crate) fn period(&self) -> Option<Range<Duration>> {
        match self {
            Self::Task(run) => Some(run.period()),
            Self::One(_) | Self::Several(_) => None,
        }
    }
}

impl Kept {
    pub(crate) fn guards(granted: Granted) -> Self {
        Self::Guards(Box::new(granted))
    }

    /// The end of the first of the store's leases.
    pub(crate) fn valid_until(&self) -> Moment {
        match self {
            Self::Guards(granted) => {
                let ends = granted.guards().iter().map(Guard::valid_until);
                ends.min().unwrap_or(Moment::from_nanos(0))
            }
            Self::Ticket(known) => known.until,
        }
    }

    /// The worst state of its locks.
    pub(crate) fn state(&self) -> HoldState {
        let Self::Guards(granted) = self else {
            // The time or the store ends it.
            return HoldState::Held;
        };
        match &**granted {
            Granted::One(guard) => guard.state(),
            Granted::Several(guards) => guards.state(),
            Granted::Task(run) => run.state(),
        }
    }

    /// Its keys, each with its token.
    pub(crate) fn locks(&self) -> Vec<(Key, FencingToken)> {
        match self {
            Self::Guards(granted) => granted.locks(),
            Self::Ticket(known) => {
                let locks = known.packed.locks();
                locks.filter_map(|lock| Some((Key::new(lock.key).ok()?, lock.token))).collect()
            }
        }
    }

    /// What is known of a ticket.
    pub(crate) fn known(&self) -> Option<&Known> {
        match self {
            Self::Ticket(known) => Some(known),
            Self::Guards(_) => None,
        }
    }

    /// The guard of the one lock; none of several locks, or of a task.
    pub(crate) fn one(&self) -> Option<&Guard> {
        match self {
            Self::Guards(granted) => match &**granted {
                Granted::One(guard) => Some(guard),
                Granted::Several(_) | Granted::Task(_) => None,
            },
            Self::Ticket(_) => None,
        }
    }

    /// The same to change it.
    pub(crate) fn one_mut(&mut self) -> Option<&mut Guard> {
        match self {
            Self::Guards(granted) => match &mut **granted {
                Granted::One(guard) => Some(guard),
                Granted::Several(_) | Granted::Task(_) => None,
            },
            Self::Ticket(_) => None,
        }
    }

    /// The period of a task, in wall-clock time since 1970.
    pub(crate) fn period(&self) -> Option<Range<Duration>> {
        match self {
            Self::Guards(granted) => granted.period(),
            Self::Ticket(known) => known.packed.period(),
        }
    }

    /// Ends the hold as its client asks, until the store answers or the lease is over. A lock has no success.
    ///
    /// # Errors
    ///
    /// As [`Guard::release_until_answered`].
    pub(crate) async fn end(self, kind: ReleaseKind, failed: impl Fn(&Error)) -> Result<(), Error> {
        let Self::Guards(granted) = self else {
            // The client's request has the ticket.
            return Ok(());
        };
        match (*granted, kind) {
            (Granted::One(guard), _) => guard.release_until_answered(failed).await,
            (Granted::Several(guards), _) => guards.release_until_answered(failed).await,
            (Granted::Task(run), ReleaseKind::Release) => run.fail_until_answered(failed).await,
            (Granted::Task(run), ReleaseKind::Succeed) => run.succeed_until_answered(failed).await,
        }
    }
}
