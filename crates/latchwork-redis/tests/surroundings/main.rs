//! Surroundings that locks meet in the field: partitions, deletions, restarts, clocks that were
//! wrong once.

#![allow(clippy::disallowed_methods, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/turning.rs"]
mod turning;

mod believer;
mod counters;
mod deletions;
mod empty_master;
mod guard_table;
mod split_brain;
