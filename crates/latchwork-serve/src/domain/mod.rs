//! What the service does: holds, wishes, events, and who may do what. Nothing here knows HTTP.

pub(crate) mod access;
pub(crate) mod events;
pub(crate) mod holds;
pub(crate) mod lock_lists;
pub(crate) mod names;
pub(crate) mod open_answers;
pub(crate) mod service;
pub(crate) mod wish;
