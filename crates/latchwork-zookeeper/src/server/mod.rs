//! How the servers are reached. Nothing here knows what a lock is.
//!
//! | file | content |
//! | --- | --- |
//! | `session/` | the client of ZooKeeper: one session, its connection, its requests and watches |
//! | `sessions.rs`, `slots.rs` | the sessions of this client: which one a ttl needs, and when it is closed |
//! | `ancestors.rs` | nodes above others, made when they are missing |
//! | `errors.rs` | refusals of the servers, and errors of the connection |
//!
//! This room imports `config.rs` and `names.rs`, and nothing else of the crate. A test of `xtask` enforces that it does
//! not import `protocol/` or `doctor.rs`.

pub(crate) mod ancestors;
pub(crate) mod errors;
pub(crate) mod session;
pub(crate) mod sessions;
mod slots;
