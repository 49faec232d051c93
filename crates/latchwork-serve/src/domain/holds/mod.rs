//! The holds of clients: how long each may be relied on, and when it ends.

pub(crate) mod change;
pub(crate) mod claims;
pub(crate) mod ended;
pub(crate) mod ends;
pub(crate) mod hold_status;
pub(crate) mod id;
pub(crate) mod kept;
pub(crate) mod origin;
pub(crate) mod queue;
pub(crate) mod registry;
pub(crate) mod release;
pub(crate) mod seal;
pub(crate) mod sessions;
mod table;
pub(crate) mod ticket;
pub(crate) mod tickets;
pub(crate) mod validity;
