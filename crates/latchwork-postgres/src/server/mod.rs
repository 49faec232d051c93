//! How a server is reached. Nothing here knows the verbs.
//!
//! | file | content |
//! | --- | --- |
//! | `connect.rs`, `greet.rs`, `schema.rs` | chooses a server; who it is; the version of its tables |
//! | `lineage.rs` | which of several servers was replaced |
//! | `pool.rs` | the connections of a store |
//! | `connection.rs`, `request.rs`, `mover.rs`, `tls.rs` | one connection: what is asked on it, how its bytes move |
//! | `statement.rs`, `reply.rs`, `errors.rs` | what the protocol hands down; how answers are read |
//!
//! This room imports `config.rs`, `names.rs` and `address/`. The verbs hand down everything else: the
//! [statements](statement::StatementList), the [check](pool::Check) of a new connection, and the receiver of
//! notifications. A test of `xtask` enforces that it does not import `protocol/` or `doctor/`.

pub(crate) mod connect;
pub(crate) mod connection;
pub(crate) mod errors;
pub(crate) mod greet;
pub(crate) mod lineage;
pub(crate) mod mover;
pub(crate) mod pool;
pub(crate) mod reply;
pub(crate) mod request;
pub(crate) mod schema;
pub(crate) mod statement;
pub(crate) mod tls;
