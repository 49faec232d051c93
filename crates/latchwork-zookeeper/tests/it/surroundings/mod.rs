//! What surrounds a lock on ZooKeeper: servers as they are installed, machines that are paused, data
//! that is set back.

#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "tests")]

mod paused_machine;
mod sessions;
mod set_back;
