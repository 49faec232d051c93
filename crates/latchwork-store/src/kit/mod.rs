//! Kits without I/O for writing a backend.
//!
//! - [`combine`]: one request to a server for many callers, for stores that can do several things at
//!   once.
//! - [`record`]: one record per key, for stores that can change one value atomically (memory,
//!   file, a database row). It is also the executable specification that other backends are
//!   compared with.
//! - [`lineup`]: a line of ordered nodes, for stores that order them (ZooKeeper, etcd).
//! - [`mailbox`]: the messages of a store for one claim that waits, for stores that push.
//! - [`address`]: hosts and ports, for stores on servers.
//! - `tls` (feature `tls`): TLS by the files that an address names.

pub mod address;
pub mod combine;
pub mod lineup;
pub mod mailbox;
pub mod record;
#[cfg(feature = "tls")]
pub mod tls;
