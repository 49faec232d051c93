//! The three ways in which a store carries out the verbs.

use std::sync::Arc;

use latchwork_store::{BackendError, Key, Snapshot};

use crate::protocol::names::Names;
use crate::protocol::plain::Plain;
use crate::protocol::replicas::Replicated;
use crate::protocol::scripted::Scripted;

/// How the store carries out the verbs.
pub(crate) enum Verbs {
    /// By one script for each verb.
    Scripted(Arc<Scripted>),
    /// The same, confirmed by replicas.
    Replicated(Replicated),
    /// By scripts of one key.
    Plain(Plain),
}

impl Verbs {
    /// The holders and waiters of one key.
    pub(crate) async fn look_at(&self, key: &Key, names: &Names) -> Result<Snapshot, BackendError> {
        match self {
            Self::Scripted(verbs) => verbs.look_at(key, names).await,
            Self::Replicated(verbs) => verbs.inner.look_at(key, names).await,
            Self::Plain(verbs) => verbs.look_at(key, names).await,
        }
    }
}
