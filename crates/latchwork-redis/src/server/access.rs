//! How this client presents itself to servers.

use std::collections::BTreeMap;
use std::sync::Arc;

use latchwork_store::{BackendError, Io};
use latchwork_wire::tls::Tls;
use latchwork_wire::{Sourced, resolve};
use redis::Cmd;

use crate::config::{Credentials, Endpoint, RedisConfig};
use crate::server::connect::unreachable;
use crate::server::seat::Seat;

/// The client as the servers see it, and where they are.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    pub(crate) credentials: Sourced<Credentials>,
    pub(crate) database: i64,
    pub(crate) tls: Option<Tls>,
    /// The addresses of servers that are not where the other servers say.
    pub(crate) detours: BTreeMap<Endpoint, Endpoint>,
    /// The commands that a new connection tries; none where it leads to no store.
    pub(crate) probe: Option<Probe>,
    /// The seat of a server that votes with others.
    pub(crate) seat: Option<Seat>,
}

impl Access {
    /// Access to the servers of an address, whose connections try the commands of `probe` and take the vote for `seat`.
    pub(crate) fn to_servers(
        config: &RedisConfig,
        probe: Option<Probe>,
        seat: Option<Seat>,
    ) -> Arc<Self> {
        Arc::new(Self { seat, ..Self::with(config, &config.credentials, config.database, probe) })
    }

    /// Access to the Sentinels of an address.
    pub(crate) fn to_sentinels(config: &RedisConfig) -> Arc<Self> {
        Arc::new(Self::with(config, &config.sentinel_credentials, 0, None))
    }

    fn with(
        config: &RedisConfig,
        credentials: &Sourced<Credentials>,
        database: i64,
        probe: Option<Probe>,
    ) -> Self {
        Self {
            credentials: credentials.clone(),
            database,
            tls: config.tls.clone(),
            detours: config.detours.clone(),
            probe,
            seat: None,
        }
    }

    /// Where a server is reached.
    pub(crate) fn way_to<'a>(&'a self, server: &'a Endpoint) -> &'a Endpoint {
        self.detours.get(server).unwrap_or(server)
    }

    /// Waits until the addresses of a server are known: no limit of a connection includes that.
    pub(crate) async fn resolve(&self, server: &Endpoint, io: &Io) -> Result<(), BackendError> {
        let found = resolve(self.way_to(server), io).await;
        found.map_err(|error| unreachable(server, self, &error.into()))
    }

    pub(crate) fn user(&self) -> String {
        self.credentials.current().0.user().to_owned()
    }
}

/// The commands that a new connection tries, to see what the server leaves out. They change nothing.
#[derive(Clone)]
pub(crate) struct Probe {
    /// Whether subscriptions are those of a Cluster.
    pub(crate) sharded: bool,
    /// Runs a script of several keys.
    pub(crate) several_keys: Cmd,
    /// Runs a script of one key.
    pub(crate) one_key: Cmd,
    /// A channel to subscribe to.
    pub(crate) channel: &'static str,
}

impl std::fmt::Debug for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Probe").field("sharded", &self.sharded).finish_non_exhaustive()
    }
}
