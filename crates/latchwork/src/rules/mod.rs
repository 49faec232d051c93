//! What a lock is told to do: its options, how long a hold is believed in, who is told of it.

pub(crate) mod adaptive;
pub(crate) mod handover;
pub(crate) mod observe;
pub(crate) mod options;
pub(crate) mod pauses;
pub(crate) mod rate_meter;
pub(crate) mod token_base;
