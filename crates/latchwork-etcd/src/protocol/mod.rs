//! The verbs of the contract, and the formats of locks in etcd.
//!
//! | file | content |
//! | --- | --- |
//! | `acquire.rs`, `far_behind.rs` | the try; the short try of a claim with many places ahead |
//! | `replace.rs` | the try of a claim that is to replace a hold |
//! | `wait.rs`, `renew.rs`, `release.rs`, `inspect.rs`, `observe.rs`, `resize.rs` | the other verbs |
//! | `holder_watch.rs` | watches the keys of held claims, so that a loss is known early |
//! | `claims.rs`, `left.rs`, `pool.rs` | this client's claims, and the leases that it has to spare |
//! | `requests.rs`, `pages.rs` | transactions and reads; answers in pages |
//! | `names.rs`, `queue.rs` | formats: the names of keys, and the queue of a lock |
//! | `shared.rs` | what all verbs share |
//!
//! This room imports `server/`, `config.rs`, `proto.rs` and `room.rs`. `backend.rs` imports it.

pub(crate) mod acquire;
pub(crate) mod claims;
pub(crate) mod far_behind;
pub(crate) mod holder_watch;
pub(crate) mod inspect;
mod left;
pub(crate) mod names;
pub(crate) mod observe;
pub(crate) mod pages;
pub(crate) mod pool;
pub(crate) mod queue;
pub(crate) mod release;
pub(crate) mod renew;
pub(crate) mod replace;
pub(crate) mod requests;
pub(crate) mod resize;
pub(crate) mod shared;
pub(crate) mod wait;
