//! How a server is reached: connections, what the server can do, where a key lives and where it has moved.
//!
//! Nothing here knows what a lock is. This room imports only `config.rs`.

pub(crate) mod access;
pub(crate) mod cluster;
pub(crate) mod confirm;
pub(crate) mod connect;
pub(crate) mod connection;
pub(crate) mod errors;
pub(crate) mod facts;
pub(crate) mod hosts;
pub(crate) mod inbox;
pub(crate) mod link;
pub(crate) mod node;
mod open;
pub(crate) mod probe;
pub(crate) mod reply;
pub(crate) mod responses;
pub(crate) mod script;
pub(crate) mod sentinel;
pub(crate) mod slot;
pub(crate) mod topology;
#[cfg(test)]
pub(crate) mod values;
