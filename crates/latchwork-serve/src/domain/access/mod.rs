//! Who may do what: tokens with rights, and clients without a token.

pub(crate) mod caller;
pub(crate) mod policy;
pub(crate) mod principal;
pub(crate) mod tokens;
