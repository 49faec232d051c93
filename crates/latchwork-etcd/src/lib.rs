#![doc = include_str!("../README.md")]

mod backend;
mod config;
mod doctor;
mod fence;
mod proto;
mod protocol;
mod server;
mod shrink;

pub use backend::EtcdBackend;
pub use config::EtcdConfig;
pub use doctor::doctor;
pub use fence::{Place, fence_text};

#[cfg(test)]
#[global_allocator]
static METERED: latchwork_services::hostile::Metered = latchwork_services::hostile::Metered;

#[cfg(test)]
mod hostile_tests;
