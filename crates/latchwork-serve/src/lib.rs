#![doc = include_str!("../README.md")]
#![cfg(target_os = "linux")]

mod domain;
mod http;
mod logs;
mod metrics;
mod page;
mod server;
mod settings;
mod time;

pub use logs::Detail;
pub use server::addresses::{DEFAULT as DEFAULT_ADDRESS, Listen};
pub use server::serve;
pub use server::tls::TlsFiles;
pub use settings::Settings;

/// Returns the OpenAPI document of the API, as JSON.
pub fn openapi() -> String {
    http::document()
}
