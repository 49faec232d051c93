//! What the verbs share: the link to the API server, and what is known of its objects.

use std::sync::Arc;

use latchwork_store::{BackendError, Io};

use crate::config::KubernetesConfig;
use crate::protocol::known::Known;
use crate::protocol::watcher::Watcher;
use crate::server::link::Link;

/// What the verbs use.
pub(crate) struct Store {
    pub(crate) link: Arc<Link>,
    pub(crate) namespace: String,
    pub(crate) known: Known,
    pub(crate) watcher: Watcher,
}

impl Store {
    pub(crate) async fn open(config: KubernetesConfig, io: Io) -> Result<Self, BackendError> {
        let namespace = config.namespace.clone();
        let link = Arc::new(Link::open(config, io).await?);
        Ok(Self { link, namespace, known: Known::default(), watcher: Watcher::default() })
    }
}
