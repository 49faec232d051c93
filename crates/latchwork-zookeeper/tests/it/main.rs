//! Locks on real ZooKeeper servers.
//!
//! Tests that are named `hNN_...` provoke the hazard of that number in `docs/limits.md`.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "tests measure, sleep and print"
)]

mod common;
mod cuts;
mod disagreement;
mod doctor;
mod faults;
mod fence;
mod hazards;
mod interop;
mod lock_delay;
mod replace;
mod resize;
mod rights;
mod sasl;
mod storm;
mod surroundings;
mod tls;
mod trips;
