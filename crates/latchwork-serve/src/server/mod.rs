//! The server: addresses, connections, TLS, signals and the stop.

pub(crate) mod addresses;
mod connection;
pub(crate) mod listener;
mod notify;
mod run;
pub(crate) mod tls;

pub use run::serve;
