#![doc = include_str!("../README.md")]

mod answers;
mod backend;
mod config;
mod errors;
mod inspect;
mod link;
mod names;
mod node;
mod plain;
mod probe;
mod push;
mod scripts;
mod sentinel;
mod topology;

pub use backend::RedisBackend;
pub use config::RedisConfig;
