//! `RedisBackend`: detects what the server can do, and chooses its verbs once.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use latchwork_store::{
    Attempt, Backend, BackendError, Blocked, Capabilities, Claim, Error, Fencing, Io, Linger,
    Query, Released, Renewal, Resized, Snapshot, Verb, Wake,
};

use crate::config::RedisConfig;
use crate::protocol::plain::Plain;
use crate::protocol::replicas::Replicated;
use crate::protocol::scripted::Scripted;
use crate::protocol::store::Store;
use crate::protocol::verbs::Verbs;
use crate::server::facts::Facts;

/// A [`Backend`] over Redis.
pub struct RedisBackend {
    pub(crate) store: Arc<Store>,
    verbs: Verbs,
    /// Determined once, so that what was promised stays true.
    capabilities: Capabilities,
}

impl RedisBackend {
    /// Connects, and finds out what the server can do.
    ///
    /// # Errors
    ///
    /// `Unreachable`, `Denied` or `Invalid`, with the server and the next step.
    pub async fn connect(config: RedisConfig, io: Io) -> Result<Arc<Self>, Error> {
        let store = Store::new(config, io);
        let facts = store.reach().await?;
        Ok(Arc::new(Self::new(store, Some(&facts))))
    }

    /// Chooses the verbs by the server's capabilities. A server that was not reached yet is assumed to
    /// have all of them.
    pub(crate) fn new(store: Arc<Store>, facts: Option<&Facts>) -> Self {
        let (name, replicas) = (store.config.shown(), store.config.min_replicas);
        let plain = facts.is_some_and(|facts| store.is_plain(facts));
        let mut can = if plain { Capabilities::least(name) } else { Capabilities::full(name) };
        (can.mixed_limits, can.resize) = (!plain, !plain);
        can.push = !plain && facts.is_none_or(|facts| facts.pushes);
        let verbs = match replicas {
            _ if plain => Verbs::Plain(Plain::new(store.clone())),
            0 => Verbs::Scripted(Scripted::new(store.clone())),
            _ => Verbs::Replicated(Replicated::new(Scripted::new(store.clone()), replicas)),
        };
        let longest = Duration::from_secs(24 * 60 * 60);
        let longest = store.guard.as_ref().map_or(longest, |guard| guard.max_ttl);
        let capabilities = can
            .with_fencing(Fencing::WhileDataSurvives)
            .with_ttl(Duration::from_millis(10)..=longest, longest.min(Duration::from_secs(30)));
        Self { store, verbs, capabilities }
    }
}

impl Backend for RedisBackend {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Attempt, BackendError>> {
        match &self.verbs {
            Verbs::Scripted(verbs) => Box::pin(verbs.try_acquire(claim)),
            Verbs::Replicated(verbs) => Box::pin(verbs.try_acquire(claim)),
            Verbs::Plain(verbs) => Box::pin(verbs.try_acquire(claim)),
        }
    }

    fn try_acquire_all<'a>(
        &'a self,
        claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Attempt, BackendError>>> {
        match (&self.verbs, claims) {
            (Verbs::Scripted(verbs), [only]) => {
                Box::pin(async move { vec![verbs.try_acquire(only).await] })
            }
            (Verbs::Scripted(verbs), _) => Box::pin(verbs.try_acquire_all(claims)),
            _ => Box::pin(join_all(claims.iter().map(|claim| self.try_acquire(claim)))),
        }
    }

    fn wait<'a>(
        &'a self,
        claim: &'a Claim,
        _blocked: &'a Blocked,
    ) -> Verb<'a, Result<Wake, BackendError>> {
        match &self.verbs {
            Verbs::Scripted(verbs) => Box::pin(verbs.wait(claim)),
            Verbs::Replicated(verbs) => Box::pin(verbs.wait(claim)),
            Verbs::Plain(verbs) => Box::pin(verbs.wait(claim)),
        }
    }

    fn renew_all<'a>(
        &'a self,
        claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Renewal, BackendError>>> {
        match &self.verbs {
            Verbs::Scripted(verbs) => Box::pin(verbs.renew_all(claims, &|route, _| route)),
            Verbs::Replicated(verbs) => Box::pin(verbs.renew_all(claims)),
            Verbs::Plain(verbs) => Box::pin(verbs.renew_all(claims)),
        }
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        linger: Linger,
    ) -> Verb<'a, Result<Released, BackendError>> {
        match &self.verbs {
            Verbs::Scripted(verbs) => Box::pin(verbs.release(claim, linger)),
            Verbs::Replicated(verbs) => Box::pin(verbs.release(claim, linger)),
            Verbs::Plain(verbs) => Box::pin(verbs.release(claim, linger)),
        }
    }

    fn resize<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Resized, BackendError>> {
        match &self.verbs {
            Verbs::Scripted(verbs) => Box::pin(verbs.resize(claim)),
            Verbs::Replicated(verbs) => Box::pin(verbs.inner.resize(claim)),
            Verbs::Plain(_) => Box::pin(async { Err(BackendError::cannot_resize()) }),
        }
    }

    fn release_all<'a>(
        &'a self,
        claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Released, BackendError>>> {
        match (&self.verbs, claims) {
            (Verbs::Scripted(verbs), [only]) => {
                Box::pin(async move { vec![verbs.release(only, Linger::None).await] })
            }
            (Verbs::Scripted(verbs), _) => Box::pin(verbs.release_all(claims)),
            _ => Box::pin(join_all(claims.iter().map(|claim| self.release(claim, Linger::None)))),
        }
    }

    fn renews_for_others(&self) -> bool {
        true
    }

    fn ttl_may_change(&self) -> bool {
        true
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Verb<'a, Result<Vec<Snapshot>, BackendError>> {
        Box::pin(async move {
            match query {
                Query::Key(key) => {
                    Ok(vec![self.verbs.look_at(key, &self.store.naming.of(key)?).await?])
                }
                Query::Prefix(prefix) => self.store.list(&self.verbs, prefix).await,
            }
        })
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend")
            .field("store", &self.store.config.shown())
            .finish_non_exhaustive()
    }
}
