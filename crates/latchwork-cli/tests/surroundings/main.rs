//! The command in the surroundings that users have: `cargo test --workspace --test surroundings`.
//! What surrounds the command: servers as they are installed.

#![allow(clippy::disallowed_methods, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;

mod addresses;
mod zookeeper_connections;
