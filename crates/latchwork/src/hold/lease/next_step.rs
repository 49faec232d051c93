//! The watchdog's next task for a lease, and the result of a renewal.

use std::time::Duration;

use crate::rules::rate_meter::Rate;
use latchwork_store::{Lost, Moment};

/// What the watchdog has to do for a lease.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// Nothing before this moment.
    Wait(Moment),
    /// Ask the store to renew it.
    Renew,
    /// It has just been lost; the store may still hold the claim.
    EndLost(Lost),
    /// It has ended before; forget it.
    Forget,
}

/// What a renewal's answer made of a lease.
#[derive(Debug, PartialEq)]
pub(crate) enum Confirmed {
    /// Valid for longer.
    Held { remaining: Duration },
    /// Valid for longer, and in doubt for what the store's clock did.
    Doubted(Rate),
    /// The store says no.
    Lost(Lost),
    /// The answer came too late, or the hold had ended: nothing changed.
    TooLate,
}
