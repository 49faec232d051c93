//! Finds the server of a key, and the route of one verb to it.
//!
//! A verb resolves its connection once ([`Topology::route`]) and sends all its commands on that
//! [`Route`]. The route finds another connection only if the key has moved, the
//! server is no longer the master, or the connection has ended.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use latchwork_store::{BackendError, BackendErrorKind, Backoff, Effect, Io};
use redis::{Cmd, Value};

use crate::config::{Deployment, RedisConfig};
use crate::server::access::{Access, Probe};
use crate::server::cluster::Cluster;
use crate::server::confirm::Confirm;
use crate::server::errors::{Failure, Reaction, without_redirection};
use crate::server::facts::Facts;
use crate::server::inbox::Inbox;
use crate::server::link::{Link, LinkId};
use crate::server::node::{Node, Target, Use};
use crate::server::script::Script;
use crate::server::seat::Seat;
use crate::server::sentinel::Sentinels;

/// The size of most commands, so that their buffers are allocated once. Measured: with the joined texts
/// of `value.rs` it saves 15 calls of realloc in the cycle of a free key (callgrind).
const ARGUMENTS: usize = 16;
const BYTES: usize = 512;
/// The most times that one request is sent.
const MAX_SENDS: u32 = 64;
/// How long a request that was certainly not applied is sent again: a little less than the engine waits
/// for an answer, so that the reason reaches the caller.
const RETRY_LIMIT: Duration = Duration::from_millis(1_500);

/// The servers of a deployment.
#[derive(Debug)]
pub(crate) enum Topology {
    /// One server, or the master behind Sentinels.
    One {
        node: Arc<Node>,
        io: Io,
        /// Another server may take over.
        fails_over: bool,
    },
    /// The masters of a Cluster.
    Cluster(Arc<Cluster>),
}

impl Topology {
    /// Connects when it is first used. Each new connection tries the commands of `probe`, and takes the vote for `seat`.
    pub(crate) fn new(
        config: &RedisConfig,
        io: &Io,
        inbox: &Arc<dyn Inbox>,
        probe: Probe,
        seat: Option<Seat>,
    ) -> Self {
        let servers = Access::to_servers(config, Some(probe), seat);
        let node = |target| Node::new(target, Use::All, servers.clone(), io.clone(), inbox.clone());
        let one = |node, fails_over| Self::One { node, io: io.clone(), fails_over };
        match &config.deployment {
            Deployment::Single(endpoint) => one(node(Target::Fixed(endpoint.clone())), false),
            Deployment::Sentinel { sentinels, service } => {
                let access = Access::to_sentinels(config);
                let sentinels =
                    Sentinels::new(sentinels.clone(), service.clone(), access, io.clone());
                let node = node(Target::Master(sentinels.clone()));
                let follower = Arc::downgrade(&node);
                sentinels.follow(node.life(), move |master| {
                    if let Some(node) = follower.upgrade() {
                        node.follow(master);
                    }
                });
                one(node, true)
            }
            Deployment::Cluster(seeds) => {
                Self::Cluster(Cluster::new(seeds.clone(), servers, io.clone(), inbox.clone()))
            }
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Connects, and returns the capabilities of a server.
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
    pub(crate) async fn subscriber(&self, slot: Option<u16>) -> Result<Arc<Link>, BackendError> {
        match self {
            Self::One { node, .. } => node.link().await,
            Self::Cluster(cluster) => {
                cluster.subscriber(slot.unwrap_or_default()).await?.link().await
            }
        }
    }

    /// The connection on which messages of a channel come, if they do; `link` is that of the slot.
    pub(crate) fn subscribed_on(
        &self,
        link: &Link,
        slot: Option<u16>,
        channel: &str,
    ) -> Option<LinkId> {
        match self {
            Self::One { .. } => link.is_subscribed(channel).then_some(link.id),
            Self::Cluster(cluster) => cluster.subscribed_on(slot.unwrap_or_default(), channel),
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

    /// The route to the server of a slot.
    pub(crate) async fn route(self: &Arc<Self>, slot: Option<u16>) -> Result<Route, BackendError> {
        Ok(Route {
            topology: self.clone(),
            slot,
            link: self.link(slot).await?,
            impatient: false,
            confirm: None,
            confirmed: Ok(0),
        })
    }
}

/// The route of one verb to the server of its key.
#[derive(Clone)]
pub(crate) struct Route {
    topology: Arc<Topology>,
    slot: Option<u16>,
    link: Arc<Link>,
    impatient: bool,
    confirm: Option<Confirm>,
    /// How many replicas have confirmed the last command.
    confirmed: Result<u32, BackendError>,
}

impl Route {
    /// The same for commands that replicas have to confirm.
    pub(crate) fn confirmed_by(mut self, confirm: Confirm) -> Self {
        self.confirm = Some(confirm);
        self
    }

    /// Whether to give up while a slot is being moved, instead of waiting for the end of that.
    pub(crate) fn set_impatient(&mut self, impatient: bool) {
        self.impatient = impatient;
    }

    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Whether the requests of other claims may share a command with those on this route. On a
    /// Cluster each slot needs its own command, and replicas confirm one command at a time.
    pub(crate) fn is_shared(&self) -> bool {
        self.confirm.is_none() && !self.topology.is_cluster()
    }

    /// Checks that enough replicas have confirmed the last command.
    pub(crate) fn check_replicas(&self) -> Result<(), BackendError> {
        self.confirm.map_or(Ok(()), |confirm| confirm.check(&self.confirmed))
    }

    /// Runs a script by its hash, with keys and arguments appended by `fill` for the connection that
    /// it is sent on. A server that does not know the script is sent the script.
    pub(crate) async fn run(
        &mut self,
        script: &Script,
        fill: impl Fn(&mut Cmd, &Link),
    ) -> Result<Value, Failure> {
        let make = |link: &Link, whole: bool| call(script, whole, |command| fill(command, link));
        // Boxed, so that the caller's future stays small.
        Box::pin(self.send(make)).await
    }

    /// The same, sent once, and whole where the server may not have the script: those who have asked for it may be gone when
    /// it would be sent again. `None` if it was not run.
    pub(crate) async fn run_once(
        &self,
        script: &Script,
        fill: impl Fn(&mut Cmd, &Link),
    ) -> Result<Option<Value>, Failure> {
        let link = &*self.link;
        if !link.is_alive() {
            return Ok(None);
        }
        let make = |whole: bool| call(script, whole, |command| fill(command, link));
        let whole = !link.has_script.load(Ordering::Relaxed);
        let sent = link.send(&make(whole)).await;
        link.has_script.store(sent.is_ok(), Ordering::Relaxed);
        match sent {
            Err(failure) if failure.error.effect == Effect::NotApplied => Ok(None),
            sent => sent.map(Some),
        }
    }

    /// Sends a command and follows it to where the slot is. `make` makes it for the connection, as
    /// a whole script if the server does not know the hash.
    ///
    /// It is sent again only when it was certainly not applied.
    pub(crate) async fn send(
        &mut self,
        make: impl Fn(&Link, bool) -> Cmd,
    ) -> Result<Value, Failure> {
        let slot = self.slot;
        self.follow(make).await.map_err(|failure| without_redirection(failure, slot))
    }

    async fn follow(&mut self, make: impl Fn(&Link, bool) -> Cmd) -> Result<Value, Failure> {
        let Self { topology, slot, link: current, impatient, confirm, confirmed } = self;
        let io = topology.io();
        let (mut whole, mut asking) = (false, None);
        let mut retries: Option<Retries> = None;
        loop {
            let (link, ask) = match asking.take() {
                Some(link) => (link, true),
                None => {
                    if retries.is_some() || !current.is_alive() {
                        *current = topology.link(*slot).await?;
                    }
                    (current.clone(), false)
                }
            };
            let command = make(&link, whole);
            let sent = match *confirm {
                Some(confirm) => {
                    let sent = Box::pin(link.send_confirmed(&command, ask, confirm)).await;
                    sent.map(|(answer, replicas)| {
                        *confirmed = replicas;
                        answer
                    })
                }
                None if ask => Box::pin(link.send_asking(&command)).await,
                None => link.send(&command).await,
            };
            let failure = match sent {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let retries = retries.get_or_insert_with(|| Retries::new(io));
            let is_denied = failure.error.kind == BackendErrorKind::Denied;
            if failure.error.effect == Effect::Unknown && !is_denied || retries.is_too_much(io) {
                return Err(failure);
            }
            match (&failure.reaction, &**topology) {
                // `EVAL` has the script: a server that misses it there would miss it for ever.
                (Reaction::SendScript, _) if !whole => {
                    whole = true;
                    if ask {
                        asking = Some(link);
                    }
                }
                (Reaction::Moved(to), Topology::Cluster(cluster)) => {
                    cluster.moved(slot.unwrap_or_default(), to.clone());
                    if retries.times > 2 {
                        retries.pause(io).await;
                    }
                }
                (Reaction::Ask(to), Topology::Cluster(cluster)) => {
                    asking = Some(cluster.at(to).link().await?);
                }
                (Reaction::AskPort(port), Topology::Cluster(cluster)) => {
                    match cluster.other_at(*port, link.endpoint()) {
                        Some(to) => asking = Some(cluster.at(&to).link().await?),
                        None if *impatient => return Err(failure),
                        None => retries.pause(io).await,
                    }
                }
                (Reaction::Again, Topology::Cluster(cluster)) if !*impatient => {
                    retries.pause(io).await;
                    if retries.times > 2 {
                        // If no node answers, the next try reports it.
                        let _ = cluster.refresh().await;
                    }
                }
                (Reaction::FindMaster, Topology::One { node, fails_over, .. }) => {
                    if !fails_over && (retries.times > 1 || !link.may_be_replaced()) {
                        return Err(failure);
                    }
                    node.leave();
                    if retries.times > 1 {
                        retries.pause(io).await;
                    }
                }
                (Reaction::FindMaster, Topology::Cluster(cluster)) => {
                    retries.pause(io).await;
                    let _ = cluster.refresh().await;
                }
                // Boxed: an acquire that is under way would be larger by it.
                _ if is_denied && Box::pin(link.is_superseded()).await => {
                    link.give_up();
                    if failure.error.effect == Effect::Unknown {
                        return Err(failure);
                    }
                }
                _ => {
                    if failure.concerns_the_connection() && link.may_be_replaced() {
                        link.give_up();
                    }
                    return Err(failure);
                }
            }
        }
    }
}

/// A request that was refused and sent again.
struct Retries {
    until: latchwork_store::Moment,
    times: u32,
    backoff: Backoff,
}

impl Retries {
    fn new(io: &Io) -> Self {
        let backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(100));
        Self { until: io.now().plus(RETRY_LIMIT), times: 0, backoff }
    }

    fn is_too_much(&mut self, io: &Io) -> bool {
        self.times += 1;
        io.now() >= self.until || self.times > MAX_SENDS
    }

    async fn pause(&mut self, io: &Io) {
        io.sleep(self.backoff.pause()).await;
    }
}

/// The call of a script by its hash, or with the whole script; `fill` appends its keys and arguments.
fn call(script: &Script, whole: bool, fill: impl FnOnce(&mut Cmd)) -> Cmd {
    let mut command = Cmd::with_capacity(ARGUMENTS, BYTES);
    command.arg(if whole { "EVAL" } else { "EVALSHA" });
    command.arg(if whole { &script.source } else { &script.hash });
    fill(&mut command);
    command
}
