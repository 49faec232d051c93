//! What surrounds a lock: load, stalls, other users, other boots.

#![allow(clippy::disallowed_methods, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;
mod stall;
