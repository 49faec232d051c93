#![doc = include_str!("../README.md")]

mod backend;
mod config;
mod doctor;
pub mod fence;
mod init;
mod protocol;
pub mod redlock;
mod server;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use backend::RedisBackend;
pub use config::RedisConfig;
pub use doctor::doctor;
pub use init::init;

/// Locks a mutex, even if a thread panicked while it held it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[global_allocator]
static METERED: latchwork_services::hostile::Metered = latchwork_services::hostile::Metered;
