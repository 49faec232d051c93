//! How the members are reached. Nothing here knows what a lock is.
//!
//! | file | content |
//! | --- | --- |
//! | `members.rs`, `link.rs` | the members, of which one is asked at a time; the requests to one of them |
//! | `channel.rs` | the connection to a member: HTTP/2 over TLS or plain |
//! | `keep_alive.rs`, `watch.rs`, `watchers.rs` | the streams of a member: keep-alives, and shared watches |
//! | `login.rs` | the credentials and the login token |
//! | `identity.rs`, `examination.rs` | whether the members are one cluster, and answer for themselves |
//! | `errors.rs` | errors of etcd and of the connection |
//!
//! This room imports `config.rs`, `proto.rs` and `room.rs`, and nothing else of the crate. A test of `xtask` enforces
//! that it does not import `protocol/` or `doctor.rs`.

pub(crate) mod channel;
pub(crate) mod errors;
pub(crate) mod examination;
pub(crate) mod identity;
pub(crate) mod keep_alive;
pub(crate) mod link;
pub(crate) mod login;
pub(crate) mod members;
pub(crate) mod watch;
pub(crate) mod watchers;
