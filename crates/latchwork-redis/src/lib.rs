//! Latchwork on Redis: one server, a master behind Sentinels, or a Cluster.

mod answers;
mod backend;
mod cluster;
mod config;
mod confirm;
mod durable;
mod errors;
mod inspect;
mod link;
mod names;
mod node;
mod push;
mod scripts;
mod sentinel;
mod topology;

pub use backend::RedisBackend;
pub use config::RedisConfig;
