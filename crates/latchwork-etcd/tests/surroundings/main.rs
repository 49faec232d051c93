//! What surrounds a lock: default settings of servers, distance, quiet, load, middleboxes.

#![allow(clippy::disallowed_methods, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;
mod distance;
mod holds;
mod quiet;
