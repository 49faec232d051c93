//! Locks on real etcd servers.
//!
//! Tests that are named `hNN_...` provoke the hazard of that number in `docs/limits.md`.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "tests measure, sleep and print"
)]

mod auth;
mod auth_changes;
mod cluster;
mod common;
mod counts;
mod fence;
mod hazards;
mod impatient;
mod inspect;
mod interop;
mod leader;
mod lost_answers;
mod outside;
mod replace;
mod resize;
mod surroundings;
mod tls;
mod trips;
mod uncertain;
