//! The token as a check in a transaction of the user's own.

use latchwork_store::FencingToken;

use crate::backend::ZooKeeperBackend;

/// The node that a lock is held by, to be checked in a transaction.
///
/// A path is of one node, ever, and its data is never changed. As long as it is there the lock is
/// held by this claim, so `multi(check(path, version), ...)` writes only then, however long its
/// process was stopped before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The whole path, with the chroot.
    pub path: String,
    /// The version of its data.
    pub version: i32,
}

impl ZooKeeperBackend {
    /// The node behind the token of a lock that this client holds; `None` if it does not, as far as
    /// it knows.
    ///
    /// Waiters of one process that hand the lock over share a node. Their tokens tell them apart.
    pub fn place(&self, token: FencingToken) -> Option<Place> {
        let (key, name) = self.shared.claims.node_created_at(token.grant_number() as i64)?;
        let path = format!("{}/{name}", self.shared.names.lock(&key));
        Some(Place { path, version: 0 })
    }
}
