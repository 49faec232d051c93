#![doc = include_str!("../README.md")]
#![cfg(target_os = "linux")]

mod access;
mod api;
mod events;
mod holds;
mod listings;
mod logs;
mod metrics;
mod names;
mod page;
mod server;
mod service;
mod settings;
mod time;
mod wish;

pub use logs::Detail;
pub use server::addresses::{DEFAULT as DEFAULT_ADDRESS, Listen};
pub use server::serve;
pub use server::tls::TlsFiles;
pub use settings::Settings;

/// Returns the OpenAPI document of the API, as JSON.
pub fn openapi() -> String {
    api::document()
}
