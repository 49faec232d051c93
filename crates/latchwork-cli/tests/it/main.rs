//! The command as people and scripts use it.
//!
//! Tests that are named `hNN_...` provoke the hazard of that number in `docs/limits.md`.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "tests measure, sleep and print"
)]

mod bad_input;
mod command_line;
mod common;
mod delay;
mod doctor;
mod elect;
mod etcd;
mod hints;
mod hold;
mod hold_keeper;
mod hold_shells;
mod inherit;
mod kill;
mod kinds;
mod kubernetes;
mod loss;
mod nested;
mod no_store;
mod once;
mod packaging;
mod postgres;
mod recipes;
mod redis;
mod run;
mod serve;
mod show;
mod signals;
mod store_choice;
mod surroundings;
mod terminal;
#[cfg(feature = "top")]
mod top;
#[cfg(feature = "top")]
mod top_terminal;
mod zookeeper;
