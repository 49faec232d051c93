//! Files and directories, reached without following a link and without waiting for a slow disk.
//!
//! | file | content |
//! | --- | --- |
//! | `dir.rs`, `approach.rs`, `beneath.rs` | a directory and its entries; the way to it; paths that cannot leave it |
//! | `fs_check.rs` | whether the file system keeps locks |
//! | `owner.rs` | whose a file is |
//! | `sync.rs` | waits for the disk without delaying others |
//! | `failure.rs` | errors of files |
//!
//! This room imports nothing else of the crate. A test of `xtask` enforces that it does not import `records/`,
//! `protocol/` or `doctor.rs`.

pub(crate) mod approach;
pub(crate) mod beneath;
pub(crate) mod dir;
pub(crate) mod failure;
pub(crate) mod fs_check;
pub(crate) mod owner;
pub(crate) mod sync;
