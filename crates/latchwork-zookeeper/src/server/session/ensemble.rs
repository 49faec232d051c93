//! The state that all sessions of a client share: the servers' addresses, and their reports.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use crate::config::ZooKeeperConfig;

/// The servers, as a client knows them.
pub(crate) struct Ensemble {
    pub(crate) config: ZooKeeperConfig,
    /// The last transaction that any of them has told of.
    newest: AtomicI64,
    /// They took no more connections from this host when one was tried last.
    is_full: AtomicBool,
    /// The newest login that all connections know.
    pub(crate) introduced: AtomicU64,
}

impl Ensemble {
    pub(crate) fn new(config: ZooKeeperConfig) -> Self {
        let introduced = AtomicU64::new(config.login.current().1);
        Self { config, newest: AtomicI64::new(0), is_full: AtomicBool::new(false), introduced }
    }

    /// The largest transaction that was seen. Whatever is written from now on has a larger one,
    /// unless the servers were set back.
    pub(crate) fn newest(&self) -> i64 {
        self.newest.load(Ordering::SeqCst)
    }

    /// A server has told of this transaction.
    pub(crate) fn saw(&self, transaction: i64) {
        self.newest.fetch_max(transaction, Ordering::SeqCst);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::SeqCst)
    }

    pub(crate) fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::SeqCst);
    }
}
