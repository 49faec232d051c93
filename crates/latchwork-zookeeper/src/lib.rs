#![doc = include_str!("../README.md")]

mod ancestors;
mod answers;
mod attempt;
mod backend;
#[cfg(feature = "bare")]
pub mod bare;
mod claims;
mod config;
mod doctor;
mod errors;
mod fence;
mod inspect;
mod janitor;
mod lingers;
mod names;
mod observe;
mod queue;
mod release;
mod renew;
mod session;
mod sessions;
mod slots;
mod wait;

pub use backend::ZooKeeperBackend;
pub use config::ZooKeeperConfig;
pub use doctor::doctor;
pub use fence::Place;

#[cfg(test)]
#[global_allocator]
static METERED: latchwork_services::hostile::Metered = latchwork_services::hostile::Metered;
