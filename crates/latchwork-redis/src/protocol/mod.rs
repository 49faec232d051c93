//! The verbs of the contract, and the formats of locks in Redis.
//!
//! | file | content |
//! | --- | --- |
//! | `verbs.rs` | the three ways to carry out the verbs: `scripted.rs`, `replicas.rs`, `plain.rs` |
//! | `scripted.rs`, `release.rs`, `renew.rs`, `inspect.rs`, `many.rs` | the verbs by scripts of several keys |
//! | `free.rs` | the short scripts for a free key, which many callers share |
//! | `push.rs`, `message.rs` | waiters, and the messages that wake them or grant them the key |
//! | `guard.rs` | the restart guard |
//! | `scripts.rs`, `granting.rs` | the scripts, assembled from the files in `scripts/` |
//! | `names.rs`, `value.rs`, `answers.rs`, `snapshot.rs`, `listing.rs` | formats: names, values, answers, views of locks |
//! | `store.rs` | what all verbs share |
//!
//! This room imports `server/` and `config.rs`. `backend.rs`, `init.rs`, `redlock/` and `doctor/` import it.

pub(crate) mod answers;
pub(crate) mod free;
pub(crate) mod granting;
pub(crate) mod guard;
pub(crate) mod inspect;
pub(crate) mod listing;
pub(crate) mod many;
pub(crate) mod message;
pub(crate) mod names;
pub(crate) mod plain;
pub(crate) mod push;
pub(crate) mod release;
pub(crate) mod renew;
pub(crate) mod replicas;
pub(crate) mod scripted;
pub(crate) mod scripts;
pub(crate) mod snapshot;
pub(crate) mod store;
pub(crate) mod value;
pub(crate) mod verbs;
