//! `EtcdBackend`: connects, and answers the verbs of the contract.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use latchwork_store::{
    Answers, Attempt, Backend, BackendError, Blocked, Capabilities, Claim, ClaimId, Doubts, Error,
    Io, Key, Linger, Query, Released, Renewal, Resized, Snapshot, Verb, Wake, Watch,
};

use crate::config::EtcdConfig;
use crate::protocol::shared::{DEFAULT_TTL, Shared};
use crate::server::errors::{error, strange};
use crate::server::examination::keep_examining;

/// The shortest lease that etcd grants with its usual election timeout.
const SHORTEST: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// How many tries of one key are under way at a time: a try reads the whole queue.
const TRIES_AT_ONCE: usize = 8;

/// A [`Backend`] over etcd.
pub struct EtcdBackend(pub(crate) Arc<Shared>);

impl EtcdBackend {
    /// Connects, and finds out whether the cluster takes requests.
    ///
    /// # Errors
    ///
    /// `Unreachable`, `Denied` or `Invalid`, with the member and the next step.
    pub async fn connect(config: EtcdConfig, io: Io) -> Result<Arc<Self>, Error> {
        let (shared, told) = Shared::new(&config, io)?;
        let reached = match shared.reach().await {
            Ok(lease) => {
                shared.members.examine_all(lease).await;
                shared.members.identity().may_grant()
            }
            Err(failure) => Err(error(failure)),
        };
        match reached {
            Ok(()) => {
                shared.io.spawn(keep_examining(Arc::downgrade(&shared.members), shared.io.clone()));
                let holder_watch = shared.holder_watch.clone();
                shared.io.spawn(holder_watch.run(Arc::downgrade(&shared), told, shared.io.clone()));
                Ok(Arc::new(Self(shared)))
            }
            Err(error) => Err(Error::from_backend(error, None, &shared.store)),
        }
    }
}

impl Drop for EtcdBackend {
    fn drop(&mut self) {
        self.0.holder_watch.close();
        self.0.members.identity().closed.notify_one();
        self.0.claims.close();
    }
}

impl Backend for EtcdBackend {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::full(self.0.store.clone());
        (can.mixed_limits, can.resize) = (true, true);
        can.with_ttl(SHORTEST..=LONGEST, DEFAULT_TTL)
    }

    fn doubts(&self) -> Option<&Doubts> {
        Some(&self.0.doubts)
    }

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Attempt, BackendError>> {
        Box::pin(self.0.try_claim(claim))
    }

    fn wait<'a>(
        &'a self,
        claim: &'a Claim,
        blocked: &'a Blocked,
    ) -> Verb<'a, Result<Wake, BackendError>> {
        Box::pin(self.0.wait_for(claim, blocked))
    }

    fn renew_all<'a>(
        &'a self,
        claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Renewal, BackendError>>> {
        Box::pin(async move {
            let answers = Answers::default();
            self.0.renew(claims, &answers).await;
            let mut told: Vec<_> = claims.iter().map(|_| None).collect();
            for (claim, answer) in answers.take() {
                told[claim].get_or_insert(answer);
            }
            told.into_iter().map(|a| a.unwrap_or_else(|| Err(strange("a renewal")))).collect()
        })
    }

    fn renew_each<'a>(&'a self, claims: &'a [Claim], answers: &'a Answers) -> Verb<'a, ()> {
        Box::pin(self.0.renew(claims, answers))
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        linger: Linger,
    ) -> Verb<'a, Result<Released, BackendError>> {
        Box::pin(async move {
            match linger {
                Linger::None => self.0.release_claim(claim).await,
                Linger::For(length) => self.0.close(claim, length).await,
                Linger::End => self.0.open(&claim.key).await,
            }
        })
    }

    fn renews_for_others(&self) -> bool {
        true
    }

    fn detach(&self, claim: &Claim) -> ClaimId {
        self.0.claims.leave(claim.id);
        claim.id
    }

    fn resize<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Resized, BackendError>> {
        Box::pin(self.0.resize(claim))
    }

    fn tries_at_once(&self) -> Option<usize> {
        Some(TRIES_AT_ONCE)
    }

    fn watch<'a>(&'a self, key: &'a Key) -> Verb<'a, Result<Option<Box<dyn Watch>>, BackendError>> {
        Box::pin(self.0.observe(key))
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Verb<'a, Result<Vec<Snapshot>, BackendError>> {
        Box::pin(self.0.look(query))
    }
}

impl fmt::Debug for EtcdBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdBackend").field("store", &self.0.store).finish_non_exhaustive()
    }
}
