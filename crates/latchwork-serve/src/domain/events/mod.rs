//! The events of locks, as a stream that clients and the page follow.

pub(crate) mod event;
pub(crate) mod hub;
pub(crate) mod observer;
pub(crate) mod readers;
pub(crate) mod store_watch;
