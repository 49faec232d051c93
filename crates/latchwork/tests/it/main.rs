//! The library as its users have it, and the engine on a paused clock.
//!
//! Tests that are named `hNN_...` provoke the hazard of that number in `docs/limits.md`.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "tests measure, sleep and print"
)]

mod blocking;
#[cfg(target_os = "linux")]
mod cancel_on_files;
#[cfg(target_os = "linux")]
mod detached;
mod engine;
#[cfg(target_os = "linux")]
mod executors;
#[cfg(target_os = "linux")]
mod fence_mariadb;
#[cfg(target_os = "linux")]
mod fence_postgres;
#[cfg(target_os = "linux")]
mod fence_sqlite;
#[cfg(all(target_os = "linux", feature = "fence-sqlx-0_8", feature = "fence-tokio-postgres-0_7"))]
mod fence_stopped;
#[cfg(all(target_os = "linux", feature = "fence-sqlx-0_8", feature = "fence-tokio-postgres-0_7"))]
mod fence_transactions;
#[cfg(target_os = "linux")]
mod giving_up;
#[cfg(all(feature = "metrics", feature = "tracing"))]
mod observers;
#[cfg(feature = "metrics")]
mod observing;
#[cfg(target_os = "linux")]
mod stopped_process;
#[cfg(target_os = "linux")]
mod surroundings;
#[cfg(feature = "testing")]
mod testing;
#[cfg(target_os = "linux")]
mod wire;
