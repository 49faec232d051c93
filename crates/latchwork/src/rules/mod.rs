//! The rules of a lock: its options, its validity, and its observer.

pub(crate) mod adaptive;
pub(crate) mod handover;
pub(crate) mod observe;
pub(crate) mod options;
pub(crate) mod pauses;
pub(crate) mod rate_meter;
pub(crate) mod token_base;
