//! Runs under faults, and what the eye says of them.
//!
//! Tests that are named `hNN_...` provoke the hazard of that number in `docs/limits.md`.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "tests measure, sleep and print"
)]

#[cfg(target_os = "linux")]
mod etcd;
#[cfg(target_os = "linux")]
mod eye;
#[cfg(target_os = "linux")]
mod file;
#[cfg(target_os = "linux")]
mod foreign;
mod http;
#[cfg(target_os = "linux")]
mod kubernetes;
#[cfg(target_os = "linux")]
mod memory;
#[cfg(target_os = "linux")]
mod postgres;
#[cfg(target_os = "linux")]
mod redis;
#[cfg(target_os = "linux")]
mod stores;
#[cfg(target_os = "linux")]
mod zookeeper;
