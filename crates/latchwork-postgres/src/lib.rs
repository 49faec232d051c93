#![doc = include_str!("../README.md")]

mod acquire;
mod backend;
mod batch;
mod busy;
mod config;
mod connect;
mod doctor;
mod errors;
pub mod fence;
mod greet;
mod guard;
mod host;
mod init;
mod inspect;
mod lane;
mod lineage;
mod listener;
mod message;
mod mover;
mod names;
mod observe;
mod passfile;
mod pool;
mod reading;
mod refused;
mod release;
mod renew;
mod schema;
mod service;
mod statements;
mod surroundings;
mod tls;
mod turn;
mod values;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use backend::PostgresBackend;
pub use config::PostgresConfig;
pub use doctor::doctor;
pub use fence::fence;
pub use init::init;

/// A mutex that a panic does not close: the other threads go on with what is inside.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[global_allocator]
static METERED: latchwork_services::hostile::Metered = latchwork_services::hostile::Metered;
