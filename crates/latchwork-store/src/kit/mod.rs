//! Pure kits for writing a backend.
//!
//! - [`record`]: one record per key, for stores that can change one value atomically (memory,
//!   file, a database row). It is also the executable specification that other backends are
//!   compared with.
//! - [`lineup`]: a queue of ordered nodes, for stores that order them (ZooKeeper, etcd).
//! - [`replace`]: a claim that replaces a hold, in such a queue.
//! - [`limit`]: a limit of permits that was changed, in such a queue.

pub mod limit;
pub mod lineup;
pub mod record;
pub mod replace;
