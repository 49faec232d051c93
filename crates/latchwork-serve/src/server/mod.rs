//! The server: addresses, connections, TLS, signals and the stop.

pub(crate) mod addresses;
mod connection;
mod descriptors;
pub(crate) mod listener;
mod notify;
mod outlet;
mod run;
mod socket;
pub(crate) mod tls;

pub use run::serve;
