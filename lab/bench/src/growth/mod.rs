//! How cost grows: curves over sizes, not points, and the exponent of each cost.
//!
//! | file | job |
//! | --- | --- |
//! | `waiters.rs` `keys.rs` `holds.rs` `processes.rs` `distance.rs` | the curves |
//! | `served.rs` | the stores, and what their servers spend and keep |
//! | `child.rs` `limited.rs` | the process that is measured, and its end if it takes too long |
//! | `budget.rs` | which sizes would take too long |
//! | `exponent.rs` `table.rs` | how steeply a cost grows, and the tables |
//! | `axis.rs` `picture.rs` | the pictures |

mod axis;
mod budget;
pub(crate) mod child;
mod distance;
mod exponent;
mod holds;
mod keys;
mod limited;
pub(crate) mod picture;
mod processes;
pub(crate) mod served;
mod table;
pub(crate) mod waiters;

use self::picture::Chart;
use self::served::Which;
use crate::{Bench, bench};

/// All pictures.
pub(crate) const CHARTS: &[&Chart] = &[
    &waiters::CPU,
    &waiters::DRAIN,
    &waiters::QUEUE,
    &keys::RATE,
    &holds::CPU,
    &processes::CPU,
    &distance::ACQUIRE,
];

macro_rules! curves {
    ($($name:literal $title:literal $curve:ident($which:ident),)*) => {
        &[$(bench(
            $name,
            concat!("How cost grows: ", $title),
            concat!($title, ": a curve over sizes, and the exponent of each cost"),
            || $curve::run(Which::$which),
        )),*]
    };
}

/// The curves. Not among `all`, for they take as long as all the others together.
pub(crate) const BENCHES: &[Bench] = curves! {
    "growth-memory-waiters" "waiters inside one process" waiters(Memory),
    "growth-memory-keys" "keys used once in memory" keys(Memory),
    "growth-memory-holds" "holds in memory" holds(Memory),
    "growth-file-waiters" "waiters on files" waiters(Files),
    "growth-file-keys" "keys used once on files" keys(Files),
    "growth-file-holds" "holds on files" holds(Files),
    "growth-file-processes" "processes on files" processes(Files),
    "growth-redis-waiters" "waiters on Redis" waiters(Redis),
    "growth-redis-keys" "keys used once on Redis" keys(Redis),
    "growth-redis-holds" "holds on Redis" holds(Redis),
    "growth-redis-processes" "processes on Redis" processes(Redis),
    "growth-redlock-waiters" "waiters on Redlock" waiters(Redlock),
    "growth-redlock-keys" "keys used once on Redlock" keys(Redlock),
    "growth-redlock-holds" "holds on Redlock" holds(Redlock),
    "growth-redlock-processes" "processes on Redlock" processes(Redlock),
    "growth-redlock-distance" "servers of Redlock that are far" distance(Redlock),
    "growth-etcd-waiters" "waiters on etcd" waiters(Etcd),
    "growth-etcd-keys" "keys used once on etcd" keys(Etcd),
    "growth-etcd-holds" "holds on etcd" holds(Etcd),
    "growth-etcd-processes" "processes on etcd" processes(Etcd),
    "growth-etcd-distance" "members of etcd that are apart" distance(Etcd),
    "growth-zookeeper-waiters" "waiters on ZooKeeper" waiters(ZooKeeper),
    "growth-zookeeper-keys" "keys used once on ZooKeeper" keys(ZooKeeper),
    "growth-zookeeper-holds" "holds on ZooKeeper" holds(ZooKeeper),
    "growth-zookeeper-processes" "processes on ZooKeeper" processes(ZooKeeper),
    "growth-zookeeper-distance" "servers of ZooKeeper that are apart" distance(ZooKeeper),
    "growth-postgres-waiters" "waiters on PostgreSQL" waiters(Postgres),
    "growth-postgres-keys" "keys used once on PostgreSQL" keys(Postgres),
    "growth-postgres-holds" "holds on PostgreSQL" holds(Postgres),
    "growth-postgres-processes" "processes on PostgreSQL" processes(Postgres),
};
