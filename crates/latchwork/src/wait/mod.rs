//! How a claim gets admitted: try, wait, try again.

pub(crate) mod acquire;
mod pace;
pub(crate) mod patience;
