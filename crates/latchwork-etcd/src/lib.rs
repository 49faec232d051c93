#![doc = include_str!("../README.md")]

mod afar;
mod backend;
mod channel;
mod claims;
mod config;
mod doctor;
mod errors;
mod fence;
mod identity;
mod inspect;
mod keep_alive;
mod link;
mod login;
mod lookout;
mod members;
mod names;
mod observe;
mod pages;
mod pool;
mod proto;
mod queue;
mod release;
mod renew;
mod requests;
mod room;
mod vetting;
mod wait;
mod watch;
mod watchers;

pub use backend::EtcdBackend;
pub use config::EtcdConfig;
pub use doctor::doctor;
pub use fence::{Place, fence_text};

#[cfg(test)]
#[global_allocator]
static METERED: latchwork_services::hostile::Metered = latchwork_services::hostile::Metered;

#[cfg(test)]
mod hostile_tests;
