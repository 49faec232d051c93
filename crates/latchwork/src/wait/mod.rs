//! Acquires a claim: try, wait, try again.

pub(crate) mod acquire;
mod local;
mod pace;
pub(crate) mod patience;
mod waiter;
