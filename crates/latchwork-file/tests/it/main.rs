//! Lock directories: verbs, processes, limits, and what surrounds them.
//!
//! Tests that are named `hNN_...` provoke the hazard of that number in `docs/limits.md`.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "tests measure, sleep and print"
)]

mod clocks;
mod common;
mod limits;
mod processes;
mod removed;
mod surroundings;
mod tasks;
mod verbs;
