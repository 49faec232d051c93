//! The verbs of the contract, and the formats of locks in PostgreSQL.
//!
//! | file | content |
//! | --- | --- |
//! | `acquire.rs`, `renew.rs`, `release.rs`, `inspect.rs`, `observe.rs` | the verbs |
//! | `batch.rs`, `busy.rs` | free keys, for many callers at once; keys that were busy a moment ago |
//! | `listener.rs`, `message.rs` | waiters, and the notifications that wake them or grant them the key |
//! | `guard.rs` | the restart guard |
//! | `statements.rs` | the statements, assembled from the files in `sql/` |
//! | `values.rs` | formats: values of the tables |
//! | `store.rs` | what all verbs share |
//!
//! This room imports `server/`, `config.rs` and `names.rs`. `backend.rs`, `init.rs` and `doctor/` import it.

pub(crate) mod acquire;
pub(crate) mod batch;
pub(crate) mod busy;
pub(crate) mod guard;
pub(crate) mod inspect;
pub(crate) mod listener;
pub(crate) mod message;
pub(crate) mod observe;
pub(crate) mod release;
pub(crate) mod renew;
pub(crate) mod statements;
pub(crate) mod store;
pub(crate) mod values;
