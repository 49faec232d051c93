//! What surrounds a program that takes locks: how its processes are made, and how its runtime polls.
//!
//! Tests that are named `hNN_...` provoke the hazard of that number in `docs/limits.md`.

#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "tests")]

mod blocked_verbs;
mod fork;
#[cfg(all(feature = "redis", feature = "etcd", feature = "zookeeper", feature = "postgres"))]
mod idle;
#[cfg(all(feature = "redis", feature = "etcd", feature = "zookeeper", feature = "postgres"))]
mod listing;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
mod many_waiters;
mod near;
#[cfg(target_os = "linux")]
mod refused;
#[cfg(all(feature = "redis", feature = "etcd", feature = "zookeeper", feature = "postgres"))]
mod silent;
mod stores;
mod unpolled;
