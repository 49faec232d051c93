//! The servers and the proxy that the tests of Latchwork stand on.
//!
//! Tests that are named `hNN_...` provoke the hazard of that number in `docs/limits.md`.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "tests measure, sleep and print"
)]

mod clock;
mod cluster;
mod etcd;
mod kubernetes;
mod postgres;
mod provide;
mod proxy;
mod redis;
mod sentinel;
mod zookeeper;
