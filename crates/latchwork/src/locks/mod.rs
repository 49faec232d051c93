//! The public handles: a manager, and the kinds of locks that it creates.

pub(crate) mod adopt;
pub(crate) mod election;
pub(crate) mod lock;
pub(crate) mod manager;
pub(crate) mod multi;
#[cfg(feature = "once")]
pub(crate) mod once;
#[cfg(feature = "once")]
pub(crate) mod period;
pub(crate) mod reentrant;
pub(crate) mod rwlock;
pub(crate) mod semaphore;
pub(crate) mod unwatched;
pub(crate) mod upgrade;
