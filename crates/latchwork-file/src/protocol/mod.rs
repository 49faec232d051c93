//! The verbs of the contract.
//!
//! | file | content |
//! | --- | --- |
//! | `acquire.rs`, `renew.rs`, `release.rs`, `inspect.rs`, `observe.rs` | the verbs; a wait is in `backend.rs` |
//! | `wakeup.rs`, `pokes.rs`, `delivery.rs` | waiters, and the pipes by which processes wake each other |
//! | `reserve.rs`, `unsynced.rs` | what must reach the disk: tokens, and releases with a linger |
//! | `shared.rs` | what all verbs share |
//!
//! This room imports `disk/` and `records/`. `backend.rs` and `doctor.rs` import it.

mod acquire;
mod delivery;
pub(crate) mod inspect;
pub(crate) mod observe;
pub(crate) mod pokes;
mod release;
mod renew;
mod reserve;
pub(crate) mod shared;
mod unsynced;
mod wakeup;
