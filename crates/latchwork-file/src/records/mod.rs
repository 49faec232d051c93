//! What lies in the lock directory, and which of it counts.
//!
//! | file | content |
//! | --- | --- |
//! | `layout.rs` | the names, and the first use of a directory |
//! | `record_file.rs`, `codec.rs`, `kept.rs` | the file of a key; its format; files that stay open |
//! | `stripe.rs` | the lock of a group of keys, with their counter of tokens |
//! | `session.rs`, `boot.rs`, `closing.rs` | who lives; which boot something is from; times that outlive a boot |
//!
//! This room imports `disk/`. A test of `xtask` enforces that it does not import `protocol/` or `doctor.rs`.

pub(crate) mod boot;
pub(crate) mod closing;
pub(crate) mod codec;
pub(crate) mod kept;
pub(crate) mod layout;
pub(crate) mod record_file;
pub(crate) mod session;
pub(crate) mod stripe;
