//! Promises that depend on the surroundings: machines that pause, addresses that are wrong, proxies,
//! other users of the server, and load. Servers run on their default settings.

#![allow(clippy::disallowed_methods, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;
mod fronts;
mod large_keyspace;
mod paused_machine;
mod two_clusters;
