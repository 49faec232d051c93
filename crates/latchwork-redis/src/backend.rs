//! `RedisBackend`: detects what the server can do, and chooses its verbs once.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use latchwork_store::{
    Attempt, Backend, BackendError, Blocked, Capabilities, Claim, Error, Fencing, Io, Key, Linger,
    Query, Released, Renewal, Snapshot, Verb, Wake,
};

use crate::config::{Deployment, RedisConfig};
use crate::protocol::guard::Rule;
use crate::protocol::names::{Names, Namespaces, Naming};
use crate::protocol::plain::Plain;
use crate::protocol::plain::only_plain;
use crate::protocol::push::Pushes;
use crate::protocol::replicas::Replicated;
use crate::protocol::scripted::Scripted;
use crate::protocol::scripts::probe;
use crate::server::facts::{Facts, Scripts};
use crate::server::inbox::Inbox;
use crate::server::topology::Topology;

/// A [`Backend`] over Redis.
pub struct RedisBackend {
    pub(crate) store: Arc<Store>,
    verbs: Verbs,
    /// Asked once, so that what was promised stays true to the letter.
    capabilities: Capabilities,
}

/// How the store does what claims ask of it.
pub(crate) enum Verbs {
    /// By one script for each verb.
    Scripted(Arc<Scripted>),
    /// The same, confirmed by replicas.
    Replicated(Replicated),
    /// By scripts of one key.
    Plain(Plain),
}

/// What all verbs work with.
pub(crate) struct Store {
    pub(crate) config: RedisConfig,
    pub(crate) topology: Arc<Topology>,
    pub(crate) naming: Naming,
    pub(crate) pushes: Arc<Pushes>,
    pub(crate) io: Io,
    pub(crate) guard: Option<Rule>,
}

impl Store {
    /// Connects when it is first used.
    pub(crate) fn new(config: RedisConfig, io: Io) -> Arc<Self> {
        let pushes = Pushes::new(io.clone());
        let is_cluster = matches!(config.deployment, Deployment::Cluster(_));
        let namespaces = Namespaces::new(&config.namespaces);
        let inbox: Arc<dyn Inbox> = pushes.clone();
        let topology = Topology::new(&config, &io, &inbox, probe(is_cluster));
        Arc::new(Self {
            guard: Rule::of(&config),
            topology: Arc::new(topology),
            naming: Naming { namespaces, is_cluster },
            config,
            pushes,
            io,
        })
    }

    /// Connects now, and finds out what the server can do.
    pub(crate) async fn reach(&self) -> Result<Facts, Error> {
        let Self { config, topology, .. } = self;
        let failed = |error| Error::from_backend(error, None, &config.shown().into());
        let facts = topology.reach().await.map_err(failed)?;
        if self.is_plain(&facts) {
            for (option, asked) in
                [("guard", config.guard), ("min_replicas", config.min_replicas > 0)]
            {
                if asked {
                    return Err(failed(only_plain(format_args!("no {option}"))));
                }
            }
        }
        Ok(facts)
    }

    /// Whether to do only what one key can do.
    fn is_plain(&self, facts: &Facts) -> bool {
        self.config.plain || facts.scripts == Scripts::OneKey
    }
}

impl Verbs {
    /// What there is of one key.
    pub(crate) async fn look_at(&self, key: &Key, names: &Names) -> Result<Snapshot, BackendError> {
        match self {
            Self::Scripted(verbs) => verbs.look_at(key, names).await,
            Self::Replicated(verbs) => verbs.inner.look_at(key, names).await,
            Self::Plain(verbs) => verbs.look_at(key, names).await,
        }
    }
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

    /// With verbs for what the server can do. One that was not reached yet is taken for one that
    /// leaves nothing out.
    pub(crate) fn new(store: Arc<Store>, facts: Option<&Facts>) -> Self {
        let (name, replicas) = (store.config.shown(), store.config.min_replicas);
        let plain = facts.is_some_and(|facts| store.is_plain(facts));
        let mut can = if plain { Capabilities::least(name) } else { Capabilities::full(name) };
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
        Box::pin(self.store.inspect(&self.verbs, query))
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend")
            .field("store", &self.store.config.shown())
            .finish_non_exhaustive()
    }
}
