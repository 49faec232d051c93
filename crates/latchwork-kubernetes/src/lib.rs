#![doc = include_str!("../README.md")]

mod attempt;
mod backend;
mod change;
mod config;
mod connector;
mod doctor;
mod errors;
pub mod fence;
mod inspect;
mod known;
mod link;
mod names;
mod object;
mod pauses;
mod release;
mod renew;
mod restored;
mod room;
mod server_time;
mod stored;
mod wait;
mod watcher;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use backend::KubernetesBackend;
pub use config::KubernetesConfig;
pub use doctor::doctor;

/// A mutex that a panic does not close: the other threads go on with what is inside.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[global_allocator]
static METERED: latchwork_services::hostile::Metered = latchwork_services::hostile::Metered;
