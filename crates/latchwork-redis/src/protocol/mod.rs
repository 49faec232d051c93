//! The verbs of the contract, and the formats of locks: names, values, scripts, answers and messages.
//!
//! This room imports `server/` and `config.rs`.

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
