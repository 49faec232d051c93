//! What the stores take at least: the bare requests of a lock on each, and the least that waking another process costs.

pub(crate) mod etcd;
pub(crate) mod file;
pub(crate) mod postgres;
pub(crate) mod redis;
pub(crate) mod zookeeper;
