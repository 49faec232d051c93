#![doc = include_str!("../README.md")]

mod answers;
mod backend;
mod cluster;
mod combine;
mod config;
mod confirm;
mod connect;
mod crowds;
mod doctor;
mod drive;
mod durable;
mod errors;
mod facts;
pub mod fence;
mod free_path;
mod gone;
mod guard;
mod holder;
mod init;
mod inspect;
mod link;
mod locked;
mod message;
mod names;
mod node;
mod plain;
mod probe;
mod push;
pub mod redlock;
mod release;
mod renew;
mod scripts;
mod sentinel;
mod topology;
#[cfg(test)]
mod values;

pub use backend::RedisBackend;
pub use config::RedisConfig;
pub use doctor::doctor;
pub use init::init;

#[cfg(test)]
#[global_allocator]
static METERED: latchwork_services::hostile::Metered = latchwork_services::hostile::Metered;
