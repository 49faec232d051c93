//! The service itself: holds, wishes, events, and who may do what. Nothing here knows HTTP.
//!
//! `service` joins the parts: what a client wants (`wish`), what it holds (`holds`), the events of locks (`events`),
//! locks as the store shows them (`lock_lists`, `lock_status`), and access (`access`). Each part answers a plain value
//! or a `refusal`.
//!
//! `http` and `server` import this room. It imports neither of them, nor `page`.

pub(crate) mod access;
pub(crate) mod events;
pub(crate) mod holds;
pub(crate) mod lock_lists;
pub(crate) mod lock_status;
pub(crate) mod names;
pub(crate) mod open_answers;
pub(crate) mod refusal;
pub(crate) mod service;
pub(crate) mod store_claims;
pub(crate) mod wish;
