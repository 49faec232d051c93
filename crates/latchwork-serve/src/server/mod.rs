//! The server: addresses, connections, TLS, signals, and the life of a service from its start to its stop.
//!
//! It puts the other rooms together, so it imports `domain` and `http`. No room imports it.

mod addresses;
mod connection;
mod descriptors;
mod listener;
mod notify;
mod outlet;
mod run;
mod socket;
mod tls;
mod webhook;

pub use run::serve;
