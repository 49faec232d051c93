//! A lock for several commands of a script: a keeper process holds it until the script's shell ends or asks
//! for the release.
//!
//! ```text
//! shell --- latchwork hold ---fork--- keeper: connects, acquires, renews
//!   |            |  <---- lines -------|
//!   |  <- prints |  ---- printed ----> |  lets go unless the shell attaches in time
//!   |-- eval: latchwork attach --socket--> |  waits for: the shell's end (pidfd), a request, a loss
//!   |-- latchwork release -------socket--> |  releases, answers, ends
//! ```
//!
//! The keeper is forked before the store is connected, because a connection belongs to one process. The shell is
//! the process that evaluates the lines: it runs `attach`, so the kernel tells the keeper who it is.

pub(crate) mod hold_id;
pub(crate) mod keep;
pub(crate) mod launch;
pub(crate) mod lender;
pub(crate) mod loan;
pub(crate) mod requests;
pub(crate) mod shell;
