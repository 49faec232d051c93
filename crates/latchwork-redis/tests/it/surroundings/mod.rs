//! Surroundings that locks meet in the field: default settings, other users of the server, long
//! lines, partitions, deletions, restarts, clocks that were wrong once.

#![allow(clippy::disallowed_methods, reason = "tests")]

mod believer;
mod counters;
mod deletions;
mod empty_master;
mod forged_messages;
mod guard_table;
mod long_lines;
mod many_names;
mod no_locks;
mod split_brain;
