//! `ZooKeeperBackend`: connects, and answers the verbs of the contract.

use std::fmt;
use std::sync::Arc;

use latchwork_store::{
    Attempt, Backend, BackendError, Blocked, Capabilities, Claim, Error, ErrorKind, Io, Key,
    Linger, Query, Released, Renewal, Resized, Snapshot, Verb, Wake, Watch,
};
use tokio::sync::{Notify, mpsc};

use crate::config::ZooKeeperConfig;
use crate::protocol::shared::Shared;
use crate::protocol::{janitor, observe};
use crate::server::session::Ensemble;
use crate::server::sessions::{Sessions, USUAL_TTL};

/// How many tries of one key are under way at a time: a try reads the whole queue.
const TRIES_AT_ONCE: usize = 8;

/// A [`Backend`] over ZooKeeper.
pub struct ZooKeeperBackend {
    pub(crate) shared: Arc<Shared>,
    /// What runs in the background ends with this.
    _alive: mpsc::Sender<()>,
}

impl ZooKeeperBackend {
    /// Connects, and finds out which sessions the servers grant.
    ///
    /// # Errors
    ///
    /// `Unreachable`, `Denied` or `Unsupported`, with the server and the next step. `Busy` if the
    /// servers take no more connections from this host for two seconds.
    pub async fn connect(config: ZooKeeperConfig, io: Io) -> Result<Arc<Self>, Error> {
        let store: Arc<str> = config.shown().into();
        let sooner: Arc<Notify> = Arc::default();
        let ensemble = Arc::new(Ensemble::new(config));
        let found = Sessions::find_out(ensemble.clone(), io.clone(), sooner.clone()).await;
        let sessions = found.map_err(|error| match ensemble.is_full() {
            true => {
                let busy = Error::new(ErrorKind::Busy, error.message).with_store(store.clone());
                error.next_step.into_iter().fold(busy, Error::with_next_step)
            }
            false => Error::from_backend(error, None, &store),
        })?;
        let shared = Shared::new(store, &ensemble.config, sessions, io.clone(), sooner);
        let (alive, ended) = mpsc::channel(1);
        io.spawn(janitor::run(Arc::downgrade(&shared), shared.sooner.clone(), ended));
        Ok(Arc::new(Self { shared, _alive: alive }))
    }
}

impl Backend for ZooKeeperBackend {
    fn capabilities(&self) -> Capabilities {
        let (shortest, longest) = self.shared.sessions.ttls();
        let usual = USUAL_TTL.clamp(shortest, longest);
        let mut can = Capabilities::full(self.shared.store.clone());
        (can.mixed_limits, can.resize) = (true, true);
        can.with_ttl(shortest..=longest, usual)
    }

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Attempt, BackendError>> {
        Box::pin(self.shared.allowed(|| self.shared.try_claim(claim)))
    }

    fn wait<'a>(
        &'a self,
        claim: &'a Claim,
        blocked: &'a Blocked,
    ) -> Verb<'a, Result<Wake, BackendError>> {
        Box::pin(self.shared.wait_for(claim, blocked))
    }

    fn renew_all<'a>(
        &'a self,
        claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Renewal, BackendError>>> {
        Box::pin(self.shared.renew(claims))
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        linger: Linger,
    ) -> Verb<'a, Result<Released, BackendError>> {
        Box::pin(async move {
            let release = || async {
                match linger {
                    Linger::None => self.shared.release_claim(claim).await,
                    Linger::For(length) => self.shared.close(claim, length).await,
                    Linger::End => self.shared.open(&claim.key).await,
                }
            };
            self.shared.allowed(release).await
        })
    }

    fn resize<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Resized, BackendError>> {
        Box::pin(self.shared.allowed(|| self.shared.resize(claim)))
    }

    fn tries_at_once(&self) -> Option<usize> {
        Some(TRIES_AT_ONCE)
    }

    fn watch<'a>(&'a self, key: &'a Key) -> Verb<'a, Result<Option<Box<dyn Watch>>, BackendError>> {
        Box::pin(observe::watch(&self.shared, key))
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Verb<'a, Result<Vec<Snapshot>, BackendError>> {
        Box::pin(self.shared.allowed(|| self.shared.look(query)))
    }
}

impl fmt::Debug for ZooKeeperBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeperBackend")
            .field("store", &self.shared.store)
            .finish_non_exhaustive()
    }
}
