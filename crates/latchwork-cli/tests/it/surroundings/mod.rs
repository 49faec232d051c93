//! The command in the surroundings that users have: `cargo test --workspace --test surroundings`.
//! What is around the command and goes wrong: machines that stand still, clocks that are set, other
//! holders.
//!
//! Tests that are named `hNN_...` provoke the hazard of that number in `docs/limits.md`.
//! What surrounds the command: servers as they are installed.

#![allow(clippy::disallowed_methods, reason = "tests")]

mod addresses;
mod first_process;
mod limits;
mod paused_machine;
mod pushed_hold;
mod refused;
mod zookeeper_connections;
