//! A hold from its grant to its end: its guard, its renewals, and its handover.
//!
//! A dozen files know each other here, since the end of a hold concerns all of them: the guard that
//! lets go, the queue of this process that may get it, the watchdog that renews it, the reaper that
//! gives it back. What the other rooms need of them goes through [`engine`].

mod answered;
mod backlog;
pub(crate) mod detach;
mod early;
pub(crate) mod engine;
pub(crate) mod guard;
pub(crate) mod lease;
pub(crate) mod local_queue;
pub(crate) mod owner;
pub(crate) mod owners;
pub(crate) mod reaper;
pub(crate) mod ticket;
pub(crate) mod watchdog;
