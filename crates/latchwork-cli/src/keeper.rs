//! A lock for several commands of a script: a keeper process holds it until the script's shell ends or asks
//! for the release.
//!
//! ```text
//! shell --- latchwork hold ---fork--- keeper: connects, acquires, renews
//!   |            |  <---- assignments ---|
//!   |  <-- eval -|                       |  waits for: the shell's end (pidfd), a request, a loss
//!   |---- latchwork release ---socket--->|  releases, answers, ends
//! ```
//!
//! The keeper is forked before the store is connected, because a connection belongs to one process.

pub(crate) mod hold_id;
pub(crate) mod keep;
pub(crate) mod launch;
pub(crate) mod shell;
