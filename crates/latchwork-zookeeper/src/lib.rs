#![doc = include_str!("../README.md")]

mod backend;
#[cfg(feature = "bare")]
pub mod bare;
mod config;
mod doctor;
mod fence;
mod names;
mod protocol;
mod server;

pub use backend::ZooKeeperBackend;
pub use config::ZooKeeperConfig;
pub use doctor::doctor;
pub use fence::Place;

#[cfg(test)]
#[global_allocator]
static METERED: latchwork_services::hostile::Metered = latchwork_services::hostile::Metered;
