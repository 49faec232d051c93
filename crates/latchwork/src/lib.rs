#![doc = include_str!("../../../README.md")]

mod address;
pub mod blocking;
mod connect;
mod examine;
#[cfg(any(feature = "metrics", feature = "tracing"))]
pub mod observers;

pub use connect::{connect, default_store};
pub use examine::{doctor, init};
pub use latchwork_core::*;
