#![doc = include_str!("../../../README.md")]

mod address;
pub mod blocking;
mod connect;
mod examine;

pub use connect::{connect, default_store};
pub use examine::{doctor, init};
pub use latchwork_core::*;
