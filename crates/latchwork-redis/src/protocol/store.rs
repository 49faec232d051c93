//! The parts of a store that all verbs share.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use latchwork_store::{BackendError, BackendErrorKind, Effect, Error, Io, random_between};

use crate::config::{Deployment, RedisConfig};
use crate::protocol::granting::probe;
use crate::protocol::guard::Rule;
use crate::protocol::names::{Namespaces, Naming};
use crate::protocol::push::Pushes;
use crate::server::facts::{Facts, ScriptSupport};
use crate::server::inbox::Inbox;
use crate::server::seat::Seat;
use crate::server::topology::Topology;

/// A store: its servers, its names, and the claims of this process that wait.
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
        Self::seated(config, io, None)
    }

    /// The same for a server that votes with others.
    pub(crate) fn seated(config: RedisConfig, io: Io, seat: Option<Seat>) -> Arc<Self> {
        let pushes = Pushes::new(io.clone());
        let is_cluster = matches!(config.deployment, Deployment::Cluster(_));
        let namespaces = Namespaces::new(&config.namespaces);
        let inbox: Arc<dyn Inbox> = pushes.clone();
        let topology = Topology::new(&config, &io, &inbox, probe(is_cluster), seat);
        Arc::new(Self {
            guard: Rule::of(&config),
            topology: Arc::new(topology),
            naming: Naming { namespaces, is_cluster },
            config,
            pushes,
            io,
        })
    }

    /// Connects now, and returns the capabilities of the server.
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

    /// Whether only scripts of one key are used: plain mode.
    pub(crate) fn is_plain(&self, facts: &Facts) -> bool {
        self.config.plain || facts.scripts == ScriptSupport::OneKey
    }
}

/// Why plain mode cannot do something.
pub(crate) fn only_plain(what: impl fmt::Display) -> BackendError {
    BackendError::new(
        BackendErrorKind::Unsupported,
        Effect::NotApplied,
        format!(
            "{what}: this store, or a proxy in front of it, refuses scripts with several keys, \
             so it has mutexes without a queue and nothing else (plain mode)"
        ),
    )
    .with_next_step("connect to the servers themselves, or use another store for this lock")
}

/// The pause between two tries of a waiter that the store cannot notify.
pub(crate) fn poll_pause() -> Duration {
    random_between(Duration::from_millis(50), Duration::from_millis(250))
}
