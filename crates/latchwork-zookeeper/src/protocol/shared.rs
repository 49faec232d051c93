//! What all verbs share: the sessions, and this client's claims and lingers.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use latchwork_store::{BackendError, BackendErrorKind, Io};
use tokio::sync::Notify;

use crate::config::ZooKeeperConfig;
use crate::names::Names;
use crate::protocol::claims::Claims;
use crate::protocol::lingers::Lingers;
use crate::server::session::access;
use crate::server::session::messages::Access;
use crate::server::sessions::Sessions;

/// As many locks are remembered as having a node.
const MOST_KNOWN: usize = 100_000;

/// What all verbs share.
pub(crate) struct Shared {
    pub(crate) store: Arc<str>,
    pub(crate) names: Names,
    pub(crate) sessions: Sessions,
    pub(crate) claims: Claims,
    pub(crate) lingers: Lingers,
    pub(crate) io: Io,
    /// A claim may end earlier than was known.
    pub(crate) sooner: Arc<Notify>,
    access: Access,
    /// Locks whose nodes were there when they were last used.
    known: Mutex<HashSet<String>>,
}

impl Shared {
    pub(crate) fn new(
        store: Arc<str>,
        config: &ZooKeeperConfig,
        sessions: Sessions,
        io: Io,
        sooner: Arc<Notify>,
    ) -> Arc<Self> {
        Arc::new(Self {
            store,
            names: Names::new(&config.chroot),
            sessions,
            claims: Claims::default(),
            lingers: Lingers::default(),
            io,
            sooner,
            access: access(config),
            known: Mutex::default(),
        })
    }

    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// Does it again if it was denied and there is a newer login.
    pub(crate) async fn allowed<T, F>(&self, verb: impl Fn() -> F) -> Result<T, BackendError>
    where
        F: Future<Output = Result<T, BackendError>>,
    {
        match verb().await {
            Err(refusal) if refusal.kind == BackendErrorKind::Denied => {
                Box::pin(self.sessions.renew_login(refusal)).await?;
                verb().await
            }
            answer => answer,
        }
    }

    pub(crate) fn is_known(&self, lock: &str) -> bool {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).contains(lock)
    }

    pub(crate) fn set_known(&self, lock: &str, is_known: bool) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_known {
            known.remove(lock);
        } else if !known.contains(lock) {
            if known.len() >= MOST_KNOWN {
                known.clear();
            }
            known.insert(lock.to_owned());
        }
    }
}
