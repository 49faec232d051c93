//! What is around a lock and goes wrong: here the disk below a store, on the real clock.
//!
//! Tests that are named `hNN_...` provoke the hazard of that number in `docs/limits.md`.

#![allow(clippy::disallowed_methods, reason = "tests block threads and measure")]

mod blocked_verbs;
mod stall;
