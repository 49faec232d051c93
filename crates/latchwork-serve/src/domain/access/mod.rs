//! Who may do what: tokens with rights.

pub(crate) mod principal;
pub(crate) mod tokens;
