//! Threads, time and calls: the base of the other layers.

pub(crate) mod block_on;
pub(crate) mod call;
pub(crate) mod driver;
pub(crate) mod gate;
pub(crate) mod own;
mod timer;
pub(crate) mod workers;
