//! How a server is reached. Nothing here knows what a lock is.
//!
//! | file | content |
//! | --- | --- |
//! | `topology.rs` | the servers of a deployment; the route of a verb to the server of its slot, redirections followed |
//! | `node.rs`, `cluster.rs`, `sentinel.rs` | one server and its connection; the map of a Cluster; the master behind Sentinels |
//! | `link.rs`, `open.rs`, `probe.rs`, `confirm.rs` | one connection: its requests, how it is opened, what the server can do, `WAIT` |
//! | `connect.rs`, `connection.rs` | the login and TLS; the wire protocol |
//! | `errors.rs`, `reply.rs`, `hosts.rs`, `facts.rs` | how answers are read |
//! | `access.rs`, `inbox.rs`, `script.rs`, `seat.rs`, `slot.rs` | what the protocol hands down: login and probe, the receiver of messages, scripts, one vote for each server, slots |
//!
//! This room imports `config.rs` and nothing else of the crate. The verbs hand down everything else: the commands of a
//! [`Probe`](access::Probe), an [`Inbox`](inbox::Inbox) for messages, and each [`Script`](script::Script). A test of
//! `xtask` enforces that it does not import `protocol/` or `doctor/`.

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
pub(crate) mod seat;
pub(crate) mod sentinel;
pub(crate) mod slot;
pub(crate) mod topology;
#[cfg(test)]
pub(crate) mod values;
