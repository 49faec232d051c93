//! The command in the surroundings that users have: `cargo test --workspace --test surroundings`.

#![allow(clippy::disallowed_methods, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;

mod addresses;
