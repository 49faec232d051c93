//! A lease in the watchdog's care: what is needed to find it, and to take it out again.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::hold::lease::Lease;
use latchwork_store::Moment;

/// Why a lease is renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RenewalKind {
    /// It is due.
    Due,
    /// The last renewal had no answer.
    Again,
}

/// A lease in the watchdog's care.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) lease: Lease,
    pub(crate) entry: u64,
    pub(crate) due: AtomicU64,
    /// Where it waits in the backlog, if it does.
    urgency: AtomicU64,
    /// The last renewal had no answer.
    pub(crate) unanswered: AtomicBool,
}

impl Watched {
    pub(crate) fn new(lease: Lease, entry: u64, due: Moment) -> Self {
        Self {
            lease,
            entry,
            due: AtomicU64::new(due.as_nanos()),
            urgency: AtomicU64::new(0),
            unanswered: AtomicBool::new(false),
        }
    }

    /// Under the lock of the schedule.
    pub(crate) fn waits_since(&self, urgency: Moment) {
        self.urgency.store(urgency.as_nanos(), Ordering::Relaxed);
    }

    pub(crate) fn waits_at(&self) -> Moment {
        Moment::from_nanos(self.urgency.load(Ordering::Relaxed))
    }

    pub(crate) fn kind(&self) -> RenewalKind {
        if self.unanswered.load(Ordering::Relaxed) { RenewalKind::Again } else { RenewalKind::Due }
    }
}
