//! Locks on a real kube-apiserver, also beside client-go's electors.
//!
//! Tests that are named `hNN_...` provoke the hazard of that number in `docs/limits.md`.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "tests measure, sleep and print"
)]

mod access;
mod client_go;
mod common;
mod costs;
mod faults;
mod fence;
mod frozen;
mod logins;
mod restore;
mod sizes;
mod surroundings;
mod tampering;
