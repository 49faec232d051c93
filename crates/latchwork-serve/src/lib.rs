#![doc = include_str!("../README.md")]
#![cfg(target_os = "linux")]

mod domain;
mod http;
mod logs;
#[cfg(test)]
mod memory_tests;
mod metrics;
mod page;
mod server;
mod settings;
mod time;

pub use logs::Detail;
pub use server::serve;
pub use settings::{DEFAULT_ADDRESS, Listen, Settings, TlsFiles};

#[cfg(test)]
#[global_allocator]
static METERED: latchwork_services::hostile::Metered = latchwork_services::hostile::Metered;

/// Returns the OpenAPI document of the API, as JSON.
pub fn openapi() -> String {
    http::document()
}
