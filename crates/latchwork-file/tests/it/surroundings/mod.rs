//! What the surroundings do to a lock directory: containers, other users, slow disks.
//! What surrounds a lock: load, stalls, other users, other boots.

#![allow(clippy::disallowed_methods, reason = "tests")]

mod containers;
mod other_users;
mod parts;
mod slow_disk;

/// Plays a part in another test; on its own it has nothing to do.
#[test]
fn child() {
    parts::play();
}
mod stall;
