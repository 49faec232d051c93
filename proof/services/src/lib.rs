//! Real servers for tests and measurements, as plain processes on loopback.
//!
//! Every server has a port and a folder of its own and is gone when its value is dropped: killed
//! by process id and waited for, the folder removed. If the test itself is killed, the system
//! kills the server, and a later run removes the folder. A program that is missing is an error
//! that names the package; nothing is skipped.
//!
//! Calls block. In an async test that has other things to do meanwhile, make them in
//! `tokio::task::spawn_blocking`, or start the servers before the runtime.

#![expect(
    clippy::disallowed_methods,
    reason = "starts processes, waits for them and delays bytes; no lock's validity depends on it"
)]

pub mod child;
mod clock_shim;
mod clock_step;
mod cluster;
pub mod contract;
mod error;
mod etcd;
mod etcd_cluster;
mod etcd_front;
mod folder;
pub mod hostile;
mod kubernetes;
mod mariadb;
mod node;
mod pgbouncer;
mod port;
mod postgres;
mod process;
pub mod program;
mod proxy;
mod redis;
mod refused;
mod resp;
mod script_text;
mod sentinel;
mod silent;
mod tls;
mod wait;
mod zookeeper;

pub use clock_shim::ServerClock;
pub use clock_step::{ring_for_step, step_timers};
pub use cluster::{ClusterOptions, Migration, RedisCluster};
pub use error::{Error, Result};
pub use etcd::{EtcdOptions, EtcdServer, Measures, etcdctl};
pub use etcd_cluster::EtcdCluster;
pub use etcd_front::EtcdFront;
pub use folder::Folder;
pub use kubernetes::{ADMIN, KubernetesServer, OTHER_ADMIN, USER};
pub use mariadb::MariaDbServer;
pub use node::Node;
pub use pgbouncer::PgBouncer;
pub use port::Port;
pub use postgres::{PostgresOptions, PostgresServer};
pub use process::{Process, provided, version};
pub use proxy::{Counts, Cut, Direction, Loss, Lost, Protocol, Proxy};
pub use redis::{Data, Persistence, RedisOptions, RedisServer, redis_cli};
pub use refused::Refused;
pub use resp::Value;
pub use script_text::{refused_script, script_of};
pub use sentinel::{Sentinel, SentinelOptions, SentinelSet};
pub use silent::Silent;
pub use tls::Certificates;
pub use zookeeper::{ZooKeeperEnsemble, ZooKeeperOptions, ZooKeeperServer};
