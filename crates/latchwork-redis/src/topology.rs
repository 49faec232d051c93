//! Which node a key lives on, and what happens when it is not there any more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use latchwork_core::{BackendError, BackendErrorKind, Effect, Io, Key};
use redis::{Cmd, Value, cmd};

use crate::config::{Deployment, Endpoint, RedisConfig};
use crate::errors::Reaction;
use crate::link::{Access, Link, Probe};
use crate::names::{Names, SLOTS};
use crate::node::{Node, Target};
use crate::push::Pushes;
use crate::scripts::Script;
use crate::sentinel::Sentinels;

/// How often one request is sent elsewhere, or again after it was certainly not applied.
const TRIES: u32 = 10;

/// How long one node may take to say who serves which slot.
const ASK_LIMIT: Duration = Duration::from_millis(500);

/// The servers of a deployment.
#[derive(Debug)]
pub(crate) enum Topology {
    /// One server, or the master behind Sentinels.
    One(Arc<Node>),
    /// The masters of a Cluster.
    Cluster(Cluster),
}

/// A Cluster as far as it is known.
#[derive(Debug)]
pub(crate) struct Cluster {
    seeds: Vec<Endpoint>,
    access: Arc<Access>,
    io: Io,
    pushes: Arc<Pushes>,
    map: Mutex<Map>,
}

#[derive(Debug)]
struct Map {
    nodes: HashMap<Endpoint, Arc<Node>>,
    /// The master of each slot, where known.
    slots: Vec<Option<Endpoint>>,
}

impl Topology {
    pub(crate) fn new(config: &RedisConfig, io: &Io, pushes: &Arc<Pushes>) -> Self {
        let access = |credentials: &_, database, probe| {
            Arc::new(Access {
                credentials: Clone::clone(credentials),
                database,
                tls: config.tls.clone(),
                probe,
            })
        };
        let probe = match &config.deployment {
            Deployment::Cluster(_) => Probe::Cluster,
            Deployment::Single(_) | Deployment::Sentinel { .. } => Probe::Store,
        };
        let servers = access(&config.credentials, config.database, probe);
        let node = |target| Node::new(target, servers.clone(), io.clone(), pushes.clone());
        match &config.deployment {
            Deployment::Single(endpoint) => Self::One(node(Target::Fixed(endpoint.clone()))),
            Deployment::Sentinel { sentinels, service } => {
                let access = access(&config.sentinel_credentials, 0, Probe::No);
                let sentinels =
                    Sentinels::new(sentinels.clone(), service.clone(), access, io.clone());
                let node = node(Target::Master(sentinels.clone()));
                sentinels.follow(&node);
                Self::One(node)
            }
            Deployment::Cluster(seeds) => Self::Cluster(Cluster {
                seeds: seeds.clone(),
                access: servers,
                io: io.clone(),
                pushes: pushes.clone(),
                map: Mutex::new(Map {
                    nodes: HashMap::new(),
                    slots: vec![None; usize::from(SLOTS)],
                }),
            }),
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// What a key is called here.
    pub(crate) fn names(&self, key: &Key) -> Result<Names, BackendError> {
        match self {
            Self::One(_) => Names::plain(key),
            Self::Cluster(_) => Names::tagged(key),
        }
    }

    /// The names of a lock that is called so here.
    pub(crate) fn names_of_stored(&self, lock: &str) -> Names {
        match self {
            Self::One(_) => Names::of_stored(lock),
            Self::Cluster(_) => Names::of_stored_tagged(lock),
        }
    }

    /// The connection to the node of a slot, without making one.
    pub(crate) fn current(&self, slot: Option<u16>) -> Option<Arc<Link>> {
        match self {
            Self::One(node) => node.current(),
            Self::Cluster(cluster) => {
                let map = cluster.lock();
                let endpoint = map.slots[usize::from(slot?)].as_ref()?;
                map.nodes.get(endpoint)?.current()
            }
        }
    }

    /// The node of a slot.
    pub(crate) async fn node(&self, slot: Option<u16>) -> Result<Arc<Node>, BackendError> {
        match self {
            Self::One(node) => Ok(node.clone()),
            Self::Cluster(cluster) => cluster.node(slot.unwrap_or_default()).await,
        }
    }

    /// The connection to the node of a slot.
    pub(crate) async fn link(&self, slot: Option<u16>) -> Result<Arc<Link>, BackendError> {
        match self.node(slot).await?.link().await {
            Ok(link) => Ok(link),
            Err(error) => {
                // Its slots may have another master by now.
                if let Self::Cluster(cluster) = self {
                    cluster.refresh().await?;
                    return self.node(slot).await?.link().await;
                }
                Err(error)
            }
        }
    }

    /// All nodes that hold keys.
    pub(crate) async fn nodes(&self) -> Result<Vec<Arc<Node>>, BackendError> {
        match self {
            Self::One(node) => Ok(vec![node.clone()]),
            Self::Cluster(cluster) => {
                cluster.refresh().await?;
                let map = cluster.lock();
                let mut masters: Vec<_> = map.slots.iter().flatten().collect();
                masters.sort_unstable();
                masters.dedup();
                Ok(masters.into_iter().filter_map(|m| map.nodes.get(m).cloned()).collect())
            }
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
        self.run_at(slot, None, script, |command, _| fill(command)).await
    }

    /// As [`Self::run`], with what `fill` makes of the connection that it is sent on. A script that
    /// may grant comes with the name of the counter of tokens.
    pub(crate) async fn run_at(
        &self,
        slot: Option<u16>,
        token: Option<&str>,
        script: &Script,
        fill: impl Fn(&mut Cmd, &Link),
    ) -> Result<Value, BackendError> {
        let make = |link: &Link, whole: bool| {
            let mut command = if whole { cmd("EVAL") } else { cmd("EVALSHA") };
            command.arg(if whole { &script.source } else { &script.hash });
            fill(&mut command, link);
            command
        };
        self.send(slot, token, make).await
    }

    /// Sends a command to the node of a slot and follows it to where the slot is. `make` makes it
    /// for the connection, as a whole script if the server does not know the hash.
    ///
    /// It is sent again only when it was certainly not applied.
    pub(crate) async fn send(
        &self,
        slot: Option<u16>,
        token: Option<&str>,
        make: impl Fn(&Link, bool) -> Cmd,
    ) -> Result<Value, BackendError> {
        let mut whole = false;
        let mut asking = None;
        let mut tries = 0;
        loop {
            let (link, ask) = match asking.take() {
                Some(link) => (link, true),
                None => (self.link(slot).await?, false),
            };
            let command = make(&link, whole);
            let sent = if ask {
                link.send_asking(&command).await
            } else if let Some(counter) = token.filter(|counter| !link.has_raised(counter)) {
                // In one flight: the server does one after the other.
                match tokio::join!(link.raise(counter), link.send(&command)) {
                    (Ok(()), answer) => answer,
                    (Err(failure), _) => Err(failure),
                }
            } else {
                link.send(&command).await
            };
            let failure = match sent {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            tries += 1;
            if tries > TRIES || failure.error.effect == Effect::Unknown {
                return Err(failure.error);
            }
            match (failure.reaction, self) {
                (Reaction::SendScript, _) => {
                    whole = true;
                    if ask {
                        asking = Some(link);
                    }
                }
                (Reaction::Moved(to), Self::Cluster(cluster)) => {
                    cluster.moved(slot.unwrap_or_default(), to);
                }
                (Reaction::Ask(to), Self::Cluster(cluster)) => {
                    asking = Some(cluster.at(&to).link().await?);
                }
                (Reaction::Again, Self::Cluster(cluster)) => {
                    cluster.io.sleep(Duration::from_millis(20) * tries).await;
                    if tries > 2 {
                        cluster.refresh().await?;
                    }
                }
                (Reaction::FindMaster, _) => {
                    if let Ok(node) = self.node(slot).await {
                        node.leave();
                    }
                    if let Self::Cluster(cluster) = self {
                        cluster.refresh().await?;
                    }
                    if tries > 1 {
                        return Err(failure.error);
                    }
                }
                _ => return Err(failure.error),
            }
        }
    }
}

impl Cluster {
    fn lock(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at(&self, endpoint: &Endpoint) -> Arc<Node> {
        let mut map = self.lock();
        let make = || {
            let target = Target::Fixed(endpoint.clone());
            Node::new(target, self.access.clone(), self.io.clone(), self.pushes.clone())
        };
        map.nodes.entry(endpoint.clone()).or_insert_with(make).clone()
    }

    async fn node(&self, slot: u16) -> Result<Arc<Node>, BackendError> {
        let known = self.lock().slots[usize::from(slot)].clone();
        if let Some(endpoint) = known {
            return Ok(self.at(&endpoint));
        }
        self.refresh().await?;
        let known = self.lock().slots[usize::from(slot)].clone();
        known.map(|endpoint| self.at(&endpoint)).ok_or_else(|| {
            BackendError::new(
                BackendErrorKind::Unreachable,
                Effect::NotApplied,
                format!("no node of the Cluster serves slot {slot}"),
            )
            .next_step("look at CLUSTER INFO, and assign the slot to a node")
        })
    }

    fn moved(&self, slot: u16, to: Endpoint) {
        self.lock().slots[usize::from(slot)] = Some(to);
    }

    /// Asks any node who serves which slot.
    async fn refresh(&self) -> Result<(), BackendError> {
        let mut known: Vec<Endpoint> = self.lock().nodes.keys().cloned().collect();
        known.sort_unstable();
        known.extend(self.seeds.iter().cloned());
        known.dedup();
        let mut problem = None;
        for endpoint in known {
            let node = self.at(&endpoint);
            let asked = async {
                let mut slots = cmd("CLUSTER");
                slots.arg("SLOTS");
                node.link().await?.send(&slots).await.map_err(|failure| failure.error)
            };
            match self.io.within(ASK_LIMIT, asked).await {
                Some(Ok(answer)) => {
                    self.learn(&answer, &endpoint);
                    return Ok(());
                }
                Some(Err(error)) => problem = Some(error),
                None => problem = Some(BackendError::no_answer(ASK_LIMIT)),
            }
        }
        Err(problem.unwrap_or_else(|| {
            BackendError::new(
                BackendErrorKind::Unreachable,
                Effect::NotApplied,
                "no node of the Cluster is known",
            )
        }))
    }

    fn learn(&self, answer: &Value, from: &Endpoint) {
        let Value::Array(ranges) = answer else { return };
        let mut slots = vec![None; usize::from(SLOTS)];
        for range in ranges {
            let Value::Array(parts) = range else { continue };
            let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &parts[..] else {
                continue;
            };
            let [host, Value::Int(port), ..] = &master[..] else { continue };
            let host = match host {
                Value::BulkString(host) if !host.is_empty() => {
                    String::from_utf8_lossy(host).into_owned()
                }
                _ => from.host.clone(),
            };
            let Ok(port) = u16::try_from(*port) else { continue };
            let endpoint = Endpoint { host, port };
            let first = usize::try_from(*first).unwrap_or(0);
            let last = usize::try_from(*last).unwrap_or(0).min(slots.len() - 1);
            if first <= last {
                slots[first..=last].fill(Some(endpoint));
            }
        }
        let mut map = self.lock();
        // Nodes that serve nothing any more are let go with their connections.
        let serving: std::collections::HashSet<_> = slots.iter().flatten().cloned().collect();
        map.nodes.retain(|endpoint, _| serving.contains(endpoint) || self.seeds.contains(endpoint));
        map.slots = slots;
    }
}
