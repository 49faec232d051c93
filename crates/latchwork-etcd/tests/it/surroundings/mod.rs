//! Promises that depend on the surroundings: machines that pause, addresses that are wrong, proxies,
//! other users of the server, and load. Servers run on their default settings.
//! What surrounds a lock: default settings of servers, distance, quiet, load, middleboxes.

#![allow(clippy::disallowed_methods, reason = "tests")]

mod distance;
mod fronts;
mod holds;
mod large_keyspace;
mod paused_machine;
mod quiet;
mod two_clusters;
