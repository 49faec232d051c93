#![doc = include_str!("../README.md")]

mod address;
mod backend;
mod config;
mod doctor;
mod init;
mod names;
mod protocol;
mod server;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use backend::PostgresBackend;
pub use config::PostgresConfig;
pub use doctor::doctor;
pub use init::init;

/// A mutex that a panic does not close: the other threads go on with what is inside.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[global_allocator]
static METERED: latchwork_services::hostile::Metered = latchwork_services::hostile::Metered;
