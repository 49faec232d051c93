//! How a claim gets admitted: try, wait, try again.

pub(crate) mod acquire;
mod local;
mod pace;
pub(crate) mod patience;
mod waiter;
