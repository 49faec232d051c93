//! Locks on real Redis servers: one, several that vote, Sentinels, Clusters.
//!
//! Tests that are named `hNN_...` provoke the hazard of that number in `docs/limits.md`.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "tests measure, sleep and print"
)]

mod checked_scripts;
mod cluster;
mod common;
mod counts;
mod dead_waiters;
mod doctor;
mod failover;
mod fence;
mod guard;
mod guard_goes_on;
mod interop;
mod late_requests;
mod lost_answers;
mod many;
mod measure;
mod moving_slots;
mod plain;
mod quarantine;
mod redlock;
mod refusals;
mod replicas;
mod review;
mod rotation;
mod sentinel;
mod server_clock;
mod server_faults;
mod socket;
mod surroundings;
mod tls_acl;
mod tls_refusals;
