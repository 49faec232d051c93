//! The five verbs on the leases of a namespace.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use latchwork_store::{
    Answers, Attempt, Backend, BackendError, Blocked, Capabilities, Claim, Doubts, Error, Fencing,
    Io, Key, Linger, Query, Released, Renewal, Resized, Snapshot, Verb, Wake, Watch,
};

use crate::config::KubernetesConfig;
use crate::protocol::names::object_of;
use crate::protocol::shared::Store;

/// Locks as leases of a namespace of Kubernetes.
pub struct KubernetesBackend {
    store: Arc<Store>,
    capabilities: Capabilities,
}

impl KubernetesBackend {
    /// Reads the credentials, and checks that the API server answers and lets leases be read.
    ///
    /// # Errors
    ///
    /// `Unreachable`, `Denied` or `Invalid`, with the server's words and the next step.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time; nothing is left.
    pub async fn connect(config: KubernetesConfig, io: Io) -> Result<Arc<Self>, Error> {
        let shown: Arc<str> = config.shown().into();
        let opened = Store::open(config, io).await;
        let store = opened.map_err(|error| Error::from_backend(error, None, &shown))?;
        let store = Arc::new(store);
        let began = store.begin().await;
        began.map_err(|error| Error::from_backend(error, None, &shown))?;
        let ttl = Duration::from_secs(1)..=Duration::from_secs(24 * 60 * 60);
        let mut capabilities = Capabilities::full(shown)
            .with_fencing(Fencing::Linearizable)
            .with_ttl(ttl, Duration::from_secs(30));
        (capabilities.mixed_limits, capabilities.resize) = (true, true);
        Ok(Arc::new(Self { store, capabilities }))
    }
}

impl Backend for KubernetesBackend {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Attempt, BackendError>> {
        self.store.keep_watching();
        Box::pin(self.store.try_acquire(claim))
    }

    fn wait<'a>(
        &'a self,
        claim: &'a Claim,
        blocked: &'a Blocked,
    ) -> Verb<'a, Result<Wake, BackendError>> {
        self.store.keep_watching();
        Box::pin(self.store.wait(claim, blocked))
    }

    fn renew_all<'a>(
        &'a self,
        claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Renewal, BackendError>>> {
        Box::pin(async move {
            let answers = Answers::default();
            self.store.renew_each(claims, &answers).await;
            let mut answers = answers.take();
            answers.sort_by_key(|(place, _)| *place);
            answers.into_iter().map(|(_, answer)| answer).collect()
        })
    }

    fn renew_each<'a>(&'a self, claims: &'a [Claim], answers: &'a Answers) -> Verb<'a, ()> {
        self.store.keep_watching();
        Box::pin(self.store.renew_each(claims, answers))
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        linger: Linger,
    ) -> Verb<'a, Result<Released, BackendError>> {
        Box::pin(self.store.release(claim, linger))
    }

    fn resize<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Resized, BackendError>> {
        Box::pin(self.store.resize(claim))
    }

    fn counts_for_all(&self) -> bool {
        false
    }

    fn renews_for_others(&self) -> bool {
        true
    }

    fn ttl_may_change(&self) -> bool {
        true
    }

    fn tries_at_once(&self) -> Option<usize> {
        Some(4)
    }

    fn doubts(&self) -> Option<&Doubts> {
        Some(&self.store.known.doubts)
    }

    fn watch<'a>(&'a self, key: &'a Key) -> Verb<'a, Result<Option<Box<dyn Watch>>, BackendError>> {
        self.store.keep_watching();
        Box::pin(async move { self.store.watch(object_of(key)).await.map(Some) })
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Verb<'a, Result<Vec<Snapshot>, BackendError>> {
        self.store.keep_watching();
        Box::pin(self.store.inspect(query))
    }
}

impl Drop for KubernetesBackend {
    fn drop(&mut self) {
        self.store.link.shut();
    }
}

impl fmt::Debug for KubernetesBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubernetesBackend")
            .field("store", &self.capabilities.store)
            .finish_non_exhaustive()
    }
}
