//! Who may do what: tokens with rights, and requests that come from where they should not.

pub(crate) mod origin;
pub(crate) mod principal;
pub(crate) mod tokens;
