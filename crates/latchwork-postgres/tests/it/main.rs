//! Locks on real PostgreSQL servers.
//!
//! Tests that are named `hNN_...` provoke the hazard of that number in `docs/limits.md`.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "tests measure, sleep and print"
)]

mod access;
mod clock;
mod common;
mod costs;
mod disk;
mod durable;
mod examined;
mod failover;
mod faults;
mod files;
mod footprint;
mod long_queues;
mod losses;
mod neighbours;
mod objects;
mod observers;
mod plans;
mod pooler;
mod quiet;
mod rotation;
mod scarce;
mod settings;
mod shortcuts;
mod strangers;
mod tables;
mod together;
mod versions;
mod waiting;
