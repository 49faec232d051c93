#![doc = include_str!("../../../README.md")]

mod address;
pub mod blocking;
mod connect;

pub use connect::{connect, default_store};
pub use latchwork_core::*;
