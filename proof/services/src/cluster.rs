//! A Redis Cluster: masters that share the slots, with replicas.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use crate::node::{Node, Place};
use crate::port::despite_collisions;
use crate::wait::{LIMIT, until};
use crate::{Error, Proxy, RedisOptions, Result};

/// How many slots there are.
const SLOTS: usize = 16_384;

const MASTERS: usize = 3;

/// How a cluster is to be started.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// How long a node may be silent until the others take it for dead.
    pub node_timeout: Duration,
    /// The servers' own options. Users, passwords and TLS are not for sets.
    pub redis: RedisOptions,
    /// Whether each node has a proxy through which clients and replicas reach it. The bus, on
    /// which the nodes watch each other, goes past it.
    pub proxies: bool,
    /// How many replicas each master has.
    pub replicas: usize,
    /// Whether nodes can be cut off from each other: see [`RedisCluster::isolate`]. Each has a proxy
    /// for clients and replicas then, and another one for its bus.
    pub partitions: bool,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self {
            node_timeout: Duration::from_millis(1500),
            redis: RedisOptions::new(),
            proxies: false,
            replicas: 1,
            partitions: false,
        }
    }
}

/// A slot that is on its way from one master to another: see [`RedisCluster::begin_migration`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migration {
    /// The slot.
    pub slot: u16,
    /// The node that has it.
    pub from: usize,
    /// The node that gets it.
    pub to: usize,
}

/// Nodes 0 to 2 are masters at first, and node n+3 is the replica of node n, as is node n+6 where
/// there are two, and so on. Dropping the value kills all of them.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Node>,
}

impl RedisCluster {
    /// Starts a cluster, and waits until every node calls it good and every replica follows.
    ///
    /// Redis itself makes a master wait for two seconds before it takes commands.
    ///
    /// # Errors
    ///
    /// If that does not come true; the text has the end of a log.
    pub fn start(options: &ClusterOptions) -> Result<Self> {
        despite_collisions(|| Self::start_once(options))
    }

    fn start_once(options: &ClusterOptions) -> Result<Self> {
        let mut places = Vec::new();
        for _ in 0..MASTERS * (1 + options.replicas) {
            places.push(match options.partitions {
                true => Place::reserve_with_bus()?,
                false => Place::reserve(options.proxies)?,
            });
        }
        let map: Vec<[u16; 2]> = places.iter().map(|p| [p.address_port(), p.bus_port()]).collect();
        let mut nodes = Vec::new();
        for (i, place) in places.into_iter().enumerate() {
            let mut redis = options
                .redis
                .clone()
                .config("cluster-enabled yes")
                // Outside the data folder: a node that lost its data is still the same node.
                .config("cluster-config-file ../nodes.conf")
                // A replica stays with its master, also when another one has lost all of its own.
                .config("cluster-allow-replica-migration no")
                .config(format!("cluster-node-timeout {}", options.node_timeout.as_millis()));
            if options.proxies || options.partitions {
                redis = redis
                    .config("cluster-announce-ip 127.0.0.1")
                    .config(format!("cluster-announce-port {}", map[i][0]))
                    .config(format!("cluster-announce-bus-port {}", map[i][1]));
            }
            if options.partitions {
                redis = redis
                    // The proxies tell the nodes by it.
                    .config(format!("bind-source-addr {}", source_of(i)))
                    // Clients are told a port and no address: they stay on the side of the network
                    // where they are.
                    .config("cluster-preferred-endpoint-type unknown-endpoint");
            }
            redis.nodes_conf = Some(nodes_conf(&map, i));
            nodes.push(place.launch(&redis)?);
        }
        for node in &mut nodes {
            node.await_ready()?;
        }
        let cluster = Self { nodes };
        cluster.wait_ok(LIMIT)?;
        Ok(cluster)
    }

    /// All nodes, whatever they are at the moment.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// A node, to kill, stop or restart it.
    pub fn node_mut(&mut self, node: usize) -> &mut Node {
        &mut self.nodes[node]
    }

    /// The address for Latchwork: all nodes.
    pub fn url(&self) -> String {
        self.url_at(Ipv4Addr::LOCALHOST)
    }

    /// The address of all nodes for clients on the [`Self::side`] with this address.
    pub fn url_at(&self, side: Ipv4Addr) -> String {
        let hosts = self.nodes.iter().map(|node| format!("{side}:{}", node.address_port()));
        format!("redis+cluster://{}", hosts.collect::<Vec<_>>().join(","))
    }

    /// Opens a side of the network for clients: a way to each node, in the order of the nodes, at
    /// another loopback address. Clients that begin there stay there, and can be cut off from some
    /// nodes by these proxies.
    ///
    /// # Errors
    ///
    /// If the cluster was started without `partitions`, or a port is taken at that address.
    pub fn side(&self, address: Ipv4Addr) -> Result<Vec<Proxy>> {
        self.partitions()?;
        self.nodes.iter().filter_map(Node::proxy).map(|proxy| proxy.beside(address)).collect()
    }

    /// Cuts nodes off from all others: no word passes between these and the rest, neither on the bus
    /// nor of replication. They reach each other, as the others do. Clients are not affected.
    ///
    /// # Errors
    ///
    /// If the cluster was started without `partitions`.
    pub fn isolate(&self, island: &[usize]) -> Result<()> {
        self.partitions()?;
        for (n, node) in self.nodes.iter().enumerate() {
            let others = 0..self.nodes.len();
            let apart = others.filter(|other| island.contains(other) != island.contains(&n));
            let apart: Vec<_> = apart.map(source_of).collect();
            node.ways().for_each(|way| way.part_from(&apart));
        }
        Ok(())
    }

    /// Ends what [`Self::isolate`] has begun.
    pub fn reunite(&self) {
        self.nodes.iter().flat_map(Node::ways).for_each(|way| way.part_from(&[]));
    }

    fn partitions(&self) -> Result<()> {
        match self.nodes.iter().all(|node| node.ways().count() == 2) {
            true => Ok(()),
            false => Err(Error::new("a cluster that was started without `partitions`")),
        }
    }

    /// The running replicas of a node, as they see it themselves.
    ///
    /// # Errors
    ///
    /// If a node does not answer.
    pub fn replicas_of(&self, master: usize) -> Result<Vec<usize>> {
        let id = self.id(master)?;
        let mut replicas = Vec::new();
        for (i, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.is_running()) {
            let me = View::of(node)?.me;
            replicas.extend(me.is_some_and(|me| me.master == id).then_some(i));
        }
        Ok(replicas)
    }

    /// Whether a node takes itself for the master of a slot.
    ///
    /// # Errors
    ///
    /// If it does not answer.
    pub fn is_master_of(&self, node: usize, slot: u16) -> Result<bool> {
        let me = View::of(&self.nodes[node])?.me;
        Ok(me.is_some_and(|me| me.is_master() && me.has(slot)))
    }

    /// Whether a node takes itself for the master of a slot, and for one that may serve it: with a
    /// majority of the masters.
    ///
    /// # Errors
    ///
    /// If it does not answer.
    pub fn serves(&self, node: usize, slot: u16) -> Result<bool> {
        let state = self.nodes[node].command(&["CLUSTER", "INFO"])?.ok()?.text();
        Ok(state.contains("cluster_state:ok") && self.is_master_of(node, slot)?)
    }

    /// The slot of a key.
    ///
    /// # Errors
    ///
    /// If no node answers.
    pub fn slot_of(&self, key: &str) -> Result<u16> {
        let node = self.nodes.iter().find(|node| node.is_running());
        let node = node.ok_or_else(|| Error::new("no node runs"))?;
        let slot = node.command(&["CLUSTER", "KEYSLOT", key])?.ok()?.text();
        slot.parse().map_err(|e| Error::while_("CLUSTER KEYSLOT", e))
    }

    /// Which running node is the master of a slot: of several that say so the latest.
    ///
    /// # Errors
    ///
    /// If there is none, or a node does not answer.
    pub fn node_of_slot(&self, slot: u16) -> Result<usize> {
        let mut owners = Vec::new();
        for (i, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.is_running()) {
            let view = View::of(node)?;
            let own = view.me.as_ref().filter(|me| me.is_master() && me.has(slot));
            owners.extend(own.map(|me| (me.epoch, i)));
        }
        let owner = owners.iter().max();
        owner.map(|(_, node)| *node).ok_or_else(|| Error::new(format!("slot {slot} has no master")))
    }

    /// Waits until a slot has another master than this node, and all running nodes know it.
    ///
    /// # Errors
    ///
    /// If that does not come true within `limit`.
    pub fn wait_for_new_master(&self, slot: u16, old: usize, limit: Duration) -> Result<usize> {
        let new = until(limit, "a new master", || match self.node_of_slot(slot) {
            Ok(node) if node == old => Err(Error::new(format!("it is node {old} still"))),
            other => other,
        })?;
        self.wait_ok(limit)?;
        Ok(new)
    }

    /// Waits until all running nodes call the cluster good and agree on it, and all running
    /// replicas follow their masters.
    ///
    /// # Errors
    ///
    /// If that does not come true within `limit`.
    pub fn wait_ok(&self, limit: Duration) -> Result<()> {
        until(limit, "the cluster to be good", || self.is_ok())
    }

    fn is_ok(&self) -> Result<()> {
        let mut views: Vec<BTreeMap<String, String>> = Vec::new();
        for node in self.nodes.iter().filter(|node| node.is_running()) {
            let state = node.command(&["CLUSTER", "INFO"])?.ok()?.text();
            if !state.contains("cluster_state:ok") {
                return Err(Error::new(format!("node on port {}: {state}", node.port())));
            }
            if node.info("role")? == "slave" && node.info("master_link_status")? != "up" {
                return Err(Error::new(format!("node on port {} does not follow", node.port())));
            }
            let view = View::of(node)?;
            let masters = view.all.into_iter().filter(|line| line.is_master());
            views.push(masters.map(|line| (line.id, line.slots.join(" "))).collect());
        }
        match views.iter().all(|view| *view == views[0]) {
            true => Ok(()),
            false => Err(Error::new(format!("the nodes do not agree: {views:?}"))),
        }
    }

    /// Begins to move a slot: from now on its old master sends clients on with `ASK` for keys that
    /// it does not have, and either answers `TRYAGAIN` to commands on several keys of which it has
    /// some only.
    ///
    /// # Errors
    ///
    /// If a node refuses.
    pub fn begin_migration(&self, slot: u16, to: usize) -> Result<Migration> {
        let from = self.node_of_slot(slot)?;
        let text = slot.to_string();
        let (source, target) = (self.id(from)?, self.id(to)?);
        self.set_slot(to, &[&text, "IMPORTING", &source])?;
        self.set_slot(from, &[&text, "MIGRATING", &target])?;
        Ok(Migration { slot, from, to })
    }

    /// Moves some keys of a slot that is on its way.
    ///
    /// # Errors
    ///
    /// If the nodes do not do it.
    pub fn move_keys(&self, migration: Migration, keys: &[&str]) -> Result<()> {
        let port = self.nodes[migration.to].port().to_string();
        let order = ["MIGRATE", "127.0.0.1", &port, "", "0", "10000", "KEYS"];
        self.nodes[migration.from].command(&[&order[..], keys].concat())?.ok().map(drop)
    }

    /// Moves the keys of the slot that are left, and makes its new master known: the old one sends
    /// clients on with `MOVED` from now on.
    ///
    /// # Errors
    ///
    /// If the nodes do not do it.
    pub fn finish_migration(&self, migration: Migration) -> Result<()> {
        let Migration { slot, from, to } = migration;
        let text = slot.to_string();
        loop {
            let some = ["CLUSTER", "GETKEYSINSLOT", &text, "100"];
            let keys = self.nodes[from].command(&some)?.ok()?;
            let keys: Vec<String> = keys.list().iter().map(|key| key.text()).collect();
            if keys.is_empty() {
                break;
            }
            self.move_keys(migration, &keys.iter().map(String::as_str).collect::<Vec<_>>())?;
        }
        let target = self.id(to)?;
        // The new master first: should this stop half-way, no slot is without one.
        self.set_slot(to, &[&text, "NODE", &target])?;
        self.set_slot(from, &[&text, "NODE", &target])?;
        until(LIMIT, "all nodes to know the new master", || {
            self.is_ok()?;
            for node in &self.nodes {
                if View::of(node)?.me.is_some_and(|me| me.moves) {
                    return Err(Error::new(format!("port {} moves the slot still", node.port())));
                }
            }
            match self.node_of_slot(slot)? {
                node if node == to => Ok(()),
                node => Err(Error::new(format!("it is node {node}"))),
            }
        })
    }

    fn set_slot(&self, node: usize, rest: &[&str]) -> Result<()> {
        self.nodes[node].command(&[&["CLUSTER", "SETSLOT"], rest].concat())?.ok().map(drop)
    }

    fn id(&self, node: usize) -> Result<String> {
        Ok(self.nodes[node].command(&["CLUSTER", "MYID"])?.ok()?.text())
    }
}

/// The cluster as one node sees it.
struct View {
    me: Option<Line>,
    all: Vec<Line>,
}

/// A line of `CLUSTER NODES`.
#[derive(Clone)]
struct Line {
    id: String,
    flags: Vec<String>,
    /// The id of its master, or `-`.
    master: String,
    epoch: u64,
    /// Ranges, without those that are on their way.
    slots: Vec<String>,
    /// A slot is on its way from or to it.
    moves: bool,
}

impl View {
    fn of(node: &Node) -> Result<Self> {
        let text = node.command(&["CLUSTER", "NODES"])?.ok()?.text();
        let all: Vec<Line> = text.lines().filter_map(Line::parse).collect();
        let me = all.iter().find(|line| line.flags.iter().any(|flag| flag == "myself"));
        Ok(Self { me: me.cloned(), all })
    }
}

impl Line {
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (moving, slots): (Vec<&str>, Vec<&str>) =
            words.iter().skip(8).partition(|word| word.starts_with('['));
        Some(Self {
            id: words.first()?.to_string(),
            flags: words.get(2)?.split(',').map(str::to_owned).collect(),
            master: words.get(3)?.to_string(),
            epoch: words.get(6)?.parse().ok()?,
            slots: slots.into_iter().map(str::to_owned).collect(),
            moves: !moving.is_empty(),
        })
    }

    /// Whether it is a master with slots, also if it is silent.
    fn is_master(&self) -> bool {
        self.flags.iter().any(|flag| flag == "master") && !self.slots.is_empty()
    }

    fn has(&self, slot: u16) -> bool {
        self.slots.iter().any(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let bound = |text: &str| text.parse::<u16>().ok();
            bound(first).is_some_and(|first| first <= slot)
                && bound(last).is_some_and(|last| slot <= last)
        })
    }
}

/// Where a node's own connections to the others come from: the proxies know it by that.
fn source_of(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 1, node as u8 + 1)
}

/// The file of one node: it knows the others from the beginning, so that they need not meet.
fn nodes_conf(map: &[[u16; 2]], me: usize) -> String {
    let id = |node: usize| format!("{:040x}", map[node][1]);
    let mut conf = String::new();
    for (node, [port, bus]) in map.iter().enumerate() {
        let myself = if node == me { "myself," } else { "" };
        let address = format!("{} 127.0.0.1:{port}@{bus}", id(node));
        let rest = if node < MASTERS {
            let (first, next) = (node * SLOTS / MASTERS, (node + 1) * SLOTS / MASTERS);
            format!("master - 0 0 {} connected {first}-{}", node + 1, next - 1)
        } else {
            let master = node % MASTERS;
            format!("slave {} 0 0 {} connected", id(master), master + 1)
        };
        conf += &format!("{address} {myself}{rest}\n");
    }
    conf + &format!("vars currentEpoch {MASTERS} lastVoteEpoch 0\n")
}
