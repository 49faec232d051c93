//! The verbs of the contract, and the formats of locks in ZooKeeper.
//!
//! | file | content |
//! | --- | --- |
//! | `acquire.rs`, `wait.rs`, `renew.rs`, `release.rs`, `inspect.rs`, `observe.rs` | the verbs |
//! | `replace.rs` | the try of a claim that is to replace a hold |
//! | `resize.rs` | a change of the limit of permits |
//! | `claims.rs`, `lingers.rs` | this client's claims, and the keys that it keeps closed |
//! | `janitor.rs` | the task that releases abandoned claims and ends lingers |
//! | `queue.rs`, `answers.rs` | formats: the queue of a lock, and what answers say |
//! | `shared.rs` | what all verbs share |
//!
//! This room imports `server/`, `config.rs` and `names.rs`. `backend.rs` imports it.

mod acquire;
pub(crate) mod answers;
pub(crate) mod claims;
mod inspect;
pub(crate) mod janitor;
pub(crate) mod lingers;
pub(crate) mod observe;
pub(crate) mod queue;
mod release;
mod renew;
mod replace;
mod resize;
pub(crate) mod shared;
mod wait;
