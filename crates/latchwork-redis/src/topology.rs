//! Which node a key lives on, and what happens when it is not there any more.

use std::sync::Arc;
use std::time::Duration;

use latchwork_store::{BackendError, Backoff, Effect, Io, Key};
use redis::{Cmd, Value};

use crate::cluster::Cluster;
use crate::config::{Deployment, RedisConfig};
use crate::confirm::{Answer, Confirm};
use crate::connect::{Access, Probe};
use crate::errors::{Failure, Reaction};
use crate::facts::Facts;
use crate::link::Link;
use crate::names::{Cache, Names, Namespaces};
use crate::node::{Node, Target, Use};
use crate::push::{Ears, Pushes};
use crate::scripts::Script;
use crate::sentinel::Sentinels;

/// How often one request is sent at most.
const MOST: u32 = 64;
/// For how long a request is sent again that was certainly not applied: somewhat less than core
/// waits for an answer, so that the reason reaches the caller.
const PATIENCE: Duration = Duration::from_millis(1_500);

/// The servers of a deployment.
#[derive(Debug)]
pub(crate) enum Topology {
    /// One server, or the master behind Sentinels.
    One {
        node: Arc<Node>,
        io: Io,
        /// Another server may take over.
        fails_over: bool,
        names: Cache,
    },
    /// The masters of a Cluster.
    Cluster(Arc<Cluster>),
}

impl Topology {
    pub(crate) fn new(config: &RedisConfig, io: &Io, pushes: &Arc<Pushes>) -> Self {
        let probe = match config.deployment {
            Deployment::Cluster(_) => Probe::Cluster,
            _ => Probe::Store,
        };
        let access = |credentials: &_, database, probe| {
            Arc::new(Access {
                credentials: Clone::clone(credentials),
                database,
                tls: config.tls.clone(),
                detours: config.detours.clone(),
                probe,
            })
        };
        let servers = access(&config.credentials, config.database, probe);
        let node =
            |target| Node::new(target, Use::All, servers.clone(), io.clone(), pushes.clone());
        let one = |node, fails_over| Self::One {
            node,
            io: io.clone(),
            fails_over,
            names: Cache::new(Namespaces::new(&config.namespaces)),
        };
        match &config.deployment {
            Deployment::Single(endpoint) => one(node(Target::Fixed(endpoint.clone())), false),
            Deployment::Sentinel { sentinels, service } => {
                let access = access(&config.sentinel_credentials, 0, Probe::No);
                let sentinels =
                    Sentinels::new(sentinels.clone(), service.clone(), access, io.clone());
                let node = node(Target::Master(sentinels.clone()));
                sentinels.follow(&node);
                one(node, true)
            }
            Deployment::Cluster(seeds) => {
                let names = Cache::new(Namespaces::new(&config.namespaces));
                let (io, pushes) = (io.clone(), pushes.clone());
                Self::Cluster(Cluster::new(seeds.clone(), servers, io, pushes, names))
            }
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// What a key is called here.
    pub(crate) fn names(&self, key: &Key) -> Result<Arc<Names>, BackendError> {
        match self {
            Self::One { names, .. } => names.get(key, Names::plain),
            Self::Cluster(cluster) => cluster.names.get(key, Names::tagged),
        }
    }

    /// The names of a lock that is called so here.
    pub(crate) fn names_of_stored(&self, lock: &str) -> Names {
        match self {
            Self::One { names, .. } => Names::of_stored(lock, &names.spaces),
            Self::Cluster(cluster) => Names::of_stored_tagged(lock, &cluster.names.spaces),
        }
    }

    /// The names of some lock in a namespace and slot.
    pub(crate) fn names_within(&self, namespace: &str, slot: u16) -> Names {
        Names::within(namespace, self.is_cluster().then_some(slot))
    }

    /// The namespaces that the address names.
    pub(crate) fn namespaces(&self) -> &Namespaces {
        match self {
            Self::One { names, .. } => &names.spaces,
            Self::Cluster(cluster) => &cluster.names.spaces,
        }
    }

    /// Finds out whether the deployment can be reached at all, and what a server of it can do.
    pub(crate) async fn reach(&self) -> Result<Facts, BackendError> {
        match self {
            Self::One { node, .. } => Ok(node.link().await?.facts.clone()),
            Self::Cluster(cluster) => {
                cluster.refresh().await?;
                cluster.facts().await
            }
        }
    }

    /// The connection to the node of a slot.
    pub(crate) async fn link(&self, slot: Option<u16>) -> Result<Arc<Link>, BackendError> {
        match self {
            Self::One { node, .. } => node.link().await,
            Self::Cluster(cluster) => cluster.link(slot.unwrap_or_default()).await,
        }
    }

    /// The connection on which messages for keys of a slot come.
    pub(crate) async fn ears(&self, slot: Option<u16>) -> Result<Arc<Link>, BackendError> {
        match self {
            Self::One { node, .. } => node.link().await,
            Self::Cluster(cluster) => cluster.ears(slot.unwrap_or_default()).await?.link().await,
        }
    }

    /// Where messages of a channel come, if they do; `link` is that of the slot.
    pub(crate) fn hears(&self, link: &Link, slot: Option<u16>, channel: &str) -> Option<Ears> {
        match self {
            Self::One { .. } => link.hears(channel).then_some(link.ears),
            Self::Cluster(cluster) => cluster.hears(slot.unwrap_or_default(), channel),
        }
    }

    /// All nodes that hold keys.
    pub(crate) async fn nodes(&self) -> Result<Vec<Arc<Node>>, BackendError> {
        match self {
            Self::One { node, .. } => Ok(vec![node.clone()]),
            Self::Cluster(cluster) => {
                cluster.refresh().await?;
                Ok(cluster.masters())
            }
        }
    }

    fn io(&self) -> &Io {
        match self {
            Self::One { io, .. } => io,
            Self::Cluster(cluster) => cluster.io(),
        }
    }

    /// Runs a script by its hash, with keys and arguments appended by `fill`. A server that does
    /// not know the script is sent the script.
    pub(crate) async fn run(
        &self,
        slot: Option<u16>,
        script: &Script,
        fill: impl Fn(&mut Cmd),
    ) -> Result<Value, BackendError> {
        self.run_at(slot, script, |command, _| fill(command)).await
    }

    /// As [`Self::run`], with what `fill` makes of the connection that it is sent on.
    pub(crate) async fn run_at(
        &self,
        slot: Option<u16>,
        script: &Script,
        fill: impl Fn(&mut Cmd, &Link),
    ) -> Result<Value, BackendError> {
        let answer = self.run_as(Sending::default(), slot, script, fill).await;
        answer.map(|answer| answer.value).map_err(|failure| failure.error)
    }

    /// As [`Self::run_at`], in a way of its own.
    pub(crate) async fn run_as(
        &self,
        sending: Sending,
        slot: Option<u16>,
        script: &Script,
        fill: impl Fn(&mut Cmd, &Link),
    ) -> Result<Answer, Failure> {
        let make = |link: &Link, whole: bool| {
            // Room for the hash, the names and the values of one lock, so that it need not grow.
            let mut command = Cmd::with_capacity(24, 768);
            command.arg(if whole { "EVAL" } else { "EVALSHA" });
            command.arg(if whole { &script.source } else { &script.hash });
            fill(&mut command, link);
            command
        };
        self.send(sending, slot, make).await
    }

    /// Sends a command to the node of a slot and follows it to where the slot is. `make` makes it
    /// for the connection, as a whole script if the server does not know the hash.
    ///
    /// It is sent again only when it was certainly not applied.
    pub(crate) async fn send(
        &self,
        sending: Sending,
        slot: Option<u16>,
        make: impl Fn(&Link, bool) -> Cmd,
    ) -> Result<Answer, Failure> {
        let refused = |error| Failure { error, reaction: Reaction::None };
        let mut whole = false;
        let mut asking = None;
        let mut trouble: Option<Trouble> = None;
        loop {
            let (link, ask) = match asking.take() {
                Some(link) => (link, true),
                None => (self.link(slot).await.map_err(refused)?, false),
            };
            let command = make(&link, whole);
            // What is rare has its room elsewhere: every try carries this future.
            let sent = match sending.confirm {
                Some(confirm) => Box::pin(link.send_confirmed(&command, ask, confirm)).await,
                None if ask => Box::pin(link.send_asking(&command)).await.map(Answer::of_master),
                None => link.send(&command).await.map(Answer::of_master),
            };
            let failure = match sent {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let trouble = trouble.get_or_insert_with(|| Trouble::new(self.io()));
            if failure.error.effect == Effect::Unknown || trouble.is_too_much(self.io()) {
                return Err(failure);
            }
            match (&failure.reaction, self) {
                (Reaction::SendScript, _) => {
                    whole = true;
                    if ask {
                        asking = Some(link);
                    }
                }
                (Reaction::Moved(to), Self::Cluster(cluster)) => {
                    cluster.moved(slot.unwrap_or_default(), to.clone());
                    if trouble.times > 2 {
                        trouble.pause(self.io()).await;
                    }
                }
                (Reaction::Ask(to), Self::Cluster(cluster)) => {
                    asking = Some(cluster.at(to).link().await.map_err(refused)?);
                }
                (Reaction::Again, Self::Cluster(cluster)) if !sending.impatient => {
                    trouble.pause(self.io()).await;
                    if trouble.times > 2 {
                        // If nobody answers, the next try tells.
                        let _ = cluster.refresh().await;
                    }
                }
                (Reaction::FindMaster, Self::One { node, fails_over, .. }) => {
                    node.leave();
                    if !fails_over && trouble.times > 1 {
                        return Err(failure);
                    }
                    if trouble.times > 1 {
                        trouble.pause(self.io()).await;
                    }
                }
                (Reaction::FindMaster, Self::Cluster(cluster)) => {
                    trouble.pause(self.io()).await;
                    let _ = cluster.refresh().await;
                }
                _ => return Err(failure),
            }
        }
    }
}

/// How a script is sent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sending {
    /// Does not wait for the end of a resharding.
    pub(crate) impatient: bool,
    /// Asks the replicas as well.
    pub(crate) confirm: Option<Confirm>,
}

/// A request that was refused and sent again.
struct Trouble {
    until: latchwork_store::Moment,
    times: u32,
    backoff: Backoff,
}

impl Trouble {
    fn new(io: &Io) -> Self {
        let backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(100));
        Self { until: io.now().plus(PATIENCE), times: 0, backoff }
    }

    fn is_too_much(&mut self, io: &Io) -> bool {
        self.times += 1;
        io.now() >= self.until || self.times > MOST
    }

    async fn pause(&mut self, io: &Io) {
        io.sleep(self.backoff.pause()).await;
    }
}
