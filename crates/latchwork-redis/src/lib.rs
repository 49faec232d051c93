#![doc = include_str!("../README.md")]

mod answers;
mod asked;
mod backend;
mod cluster;
mod config;
mod connect;
mod connection;
mod doctor;
mod errors;
mod facts;
pub mod fence;
mod free;
mod guard;
mod hosts;
mod init;
mod inspect;
mod link;
mod listing;
mod many;
mod message;
mod names;
mod node;
mod plain;
mod push;
pub mod redlock;
mod release;
mod renew;
mod replicas;
mod scripted;
mod scripts;
mod sentinel;
mod topology;
mod value;
#[cfg(test)]
mod values;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use backend::RedisBackend;
pub use config::RedisConfig;
pub use doctor::doctor;
pub use init::init;

/// A mutex that a panic does not close: the other threads go on with what is inside.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[global_allocator]
static METERED: latchwork_services::hostile::Metered = latchwork_services::hostile::Metered;
