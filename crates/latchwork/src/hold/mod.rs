//! A hold from its grant to its end: its guard, its renewals, and its handover.
//!
//! | file | content |
//! | --- | --- |
//! | `engine.rs` | what all handles and guards of a manager share; the end of a hold, and its handover |
//! | `guard.rs`, `owners.rs`, `owner.rs` | the guard of a hold; the guards of one owner of a reentrant mutex |
//! | `delayed.rs` | the store as the engine sees it: without lock delays |
//! | `detach.rs`, `ticket.rs` | a hold that passes to another process |
//! | `answered.rs` | a release that waits for the store |
//! | `lease.rs`, `watched.rs` | the state of a hold, by the clock; a lease in the care of the watchdog |
//! | `watchdog.rs`, `backlog.rs`, `early_doubts.rs` | renewals: when, in which order, and doubts that come before the grant |
//! | `renewals.rs` | renewals that an owner asks for |
//! | `local_queue.rs` | the waiters of this process |
//! | `reaper.rs` | releases in the background |
//!
//! What the other rooms need of them goes through [`engine`].

pub(crate) mod answered;
mod backlog;
pub(crate) mod delayed;
pub(crate) mod detach;
mod early_doubts;
pub(crate) mod engine;
pub(crate) mod guard;
pub(crate) mod lease;
pub(crate) mod local_queue;
pub(crate) mod owner;
pub(crate) mod owners;
pub(crate) mod reaper;
pub(crate) mod renewals;
pub(crate) mod ticket;
pub(crate) mod watchdog;
pub(crate) mod watched;
