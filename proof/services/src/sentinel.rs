//! One master, two replicas, and three sentinels that watch them.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::folder::Folder;
use crate::node::{Node, Place};
use crate::port::{Port, despite_collisions};
use crate::process::{Process, is_a_process, provided};
use crate::resp::{Probe, Value};
use crate::wait::{LIMIT, until};
use crate::{Error, RedisOptions, Result};

const SERVERS: usize = 3;
const SENTINELS: usize = 3;

/// How long a sentinel may take to answer a probe.
const PROBE_LIMIT: Duration = Duration::from_secs(5);

/// How a set is to be started.
#[derive(Debug, Clone)]
pub struct SentinelOptions {
    /// The name under which the sentinels know the master.
    pub name: String,
    /// How long a server may be silent until a sentinel takes it for dead.
    pub down_after: Duration,
    /// How long a fail-over may take before another one is tried.
    pub failover_timeout: Duration,
    /// The servers' own options. Users, passwords and TLS are not for sets.
    pub redis: RedisOptions,
    /// Whether each server has a proxy through which all others reach it.
    pub proxies: bool,
}

impl Default for SentinelOptions {
    fn default() -> Self {
        Self {
            name: "latchwork".into(),
            down_after: Duration::from_secs(1),
            failover_timeout: Duration::from_secs(5),
            redis: RedisOptions::new(),
            proxies: false,
        }
    }
}

/// A sentinel as a process.
#[derive(Debug)]
pub struct Sentinel {
    process: Process,
    port: Port,
    folder: Folder,
}

is_a_process!(Sentinel);

impl Sentinel {
    fn launch(port: Port, conf: &[String]) -> Result<Self> {
        let folder = Folder::new()?;
        let path = folder.path();
        let own = [
            "bind 127.0.0.1".into(),
            "protected-mode no".into(),
            format!("port {}", port.number()),
            format!("dir {}", path.display()),
            format!("unixsocket {}", path.join("socket").display()),
        ];
        let conf = own.iter().chain(conf).map(|line| format!("{line}\n")).collect::<String>();
        fs::write(path.join("sentinel.conf"), conf)?;
        let process = Self::spawn(&folder)?;
        Ok(Self { process, port, folder })
    }

    fn spawn(folder: &Folder) -> Result<Process> {
        let mut command = Command::new(provided("redis")?);
        command.arg(folder.path().join("sentinel.conf")).arg("--sentinel");
        Process::start(&command, &folder.path().join("log"))
    }

    /// Waits until it answers, and shortens its periods: at the usual ones of 2 to 10 s a master
    /// that comes back needs 20 s to become a replica.
    fn await_ready(&self) -> Result<()> {
        until(LIMIT, "a sentinel", || {
            self.command(&["PING"]).map_err(|e| format!("{e}; its log:\n{}", self.log()))
        })?;
        // Known since version 7.0; an older one is slow.
        let periods = "INFO-PERIOD 500 PUBLISH-PERIOD 500 PING-PERIOD 200 ASK-PERIOD 200";
        let words: Vec<&str> = "SENTINEL DEBUG".split(' ').chain(periods.split(' ')).collect();
        self.command(&words).map(drop)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Sends it a command.
    ///
    /// # Errors
    ///
    /// If there is no answer.
    pub fn command<A: AsRef<[u8]>>(&self, command: &[A]) -> Result<Value> {
        Probe::connect(&self.folder.path().join("socket"), PROBE_LIMIT)?.ask(command)
    }

    /// Kills it if it runs, and starts it again with what it has learnt until then. It does not
    /// wait for the set to settle.
    ///
    /// # Errors
    ///
    /// If it does not answer.
    pub fn restart(&mut self) -> Result<()> {
        self.kill();
        let _ = fs::remove_file(self.folder.path().join("socket"));
        self.process = Self::spawn(&self.folder)?;
        self.await_ready()
    }

    fn master_port(&self, name: &str) -> Result<u16> {
        let address = self.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name])?.ok()?;
        let port = address.list().get(1).and_then(|port| port.text().parse().ok());
        port.ok_or_else(|| Error::new(format!("no master: {address:?}")))
    }
}

/// A set of servers under Sentinel. Dropping it kills all of them.
#[derive(Debug)]
pub struct SentinelSet {
    name: String,
    // First: a sentinel alone has nobody to promote.
    sentinels: Vec<Sentinel>,
    nodes: Vec<Node>,
}

impl SentinelSet {
    /// Starts a set with node 0 as the master, and waits until the sentinels agree on it, know one
    /// another and both replicas, and the replicas follow.
    ///
    /// # Errors
    ///
    /// If that does not come true; the text has the end of a log.
    pub fn start(options: &SentinelOptions) -> Result<Self> {
        despite_collisions(|| Self::start_once(options))
    }

    fn start_once(options: &SentinelOptions) -> Result<Self> {
        let mut places = Vec::new();
        for _ in 0..SERVERS {
            places.push(Place::reserve(options.proxies)?);
        }
        let ports: Vec<u16> = places.iter().map(Place::address_port).collect();
        let mut nodes = Vec::new();
        for (i, place) in places.into_iter().enumerate() {
            let mut redis = options.redis.clone();
            if options.proxies {
                redis = redis
                    .config("replica-announce-ip 127.0.0.1")
                    .config(format!("replica-announce-port {}", ports[i]));
            }
            if i > 0 {
                redis = redis.replica_of(ports[0]);
            }
            nodes.push(place.launch(&redis)?);
        }
        for node in &mut nodes {
            node.await_ready()?;
        }
        let sentinels = launch_sentinels(options, &ports)?;
        let mut set = Self { name: options.name.clone(), sentinels, nodes };
        set.wait_settled(LIMIT)?;
        Ok(set)
    }

    /// The name under which the sentinels know the master.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address for Latchwork: all sentinels, and the name.
    pub fn url(&self) -> String {
        let hosts = self.sentinels.iter().map(|s| format!("127.0.0.1:{}", s.port()));
        format!("redis+sentinel://{}/{}", hosts.collect::<Vec<_>>().join(","), self.name)
    }

    /// All servers, whatever they are at the moment.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// A server, to kill, stop or restart it.
    pub fn node_mut(&mut self, node: usize) -> &mut Node {
        &mut self.nodes[node]
    }

    /// The sentinels.
    pub fn sentinels(&self) -> &[Sentinel] {
        &self.sentinels
    }

    /// A sentinel, to kill, stop or restart it.
    pub fn sentinel_mut(&mut self, sentinel: usize) -> &mut Sentinel {
        &mut self.sentinels[sentinel]
    }

    /// The sentinels' ports.
    pub fn sentinel_ports(&self) -> Vec<u16> {
        self.sentinels.iter().map(Sentinel::port).collect()
    }

    /// Which node the running sentinels call the master.
    ///
    /// # Errors
    ///
    /// If they do not agree or do not answer.
    pub fn master(&self) -> Result<usize> {
        let mut named = Vec::new();
        for sentinel in self.sentinels.iter().filter(|s| s.process.is_running()) {
            named.push(sentinel.master_port(&self.name)?);
        }
        match named.first() {
            Some(port) if named.iter().all(|other| other == port) => {
                let node = self.nodes.iter().position(|n| n.address_port() == *port);
                node.ok_or_else(|| Error::new(format!("no node is on port {port}")))
            }
            _ => Err(Error::new(format!("the sentinels name as the master: {named:?}"))),
        }
    }

    /// The nodes that are not the master.
    ///
    /// # Errors
    ///
    /// As [`Self::master`].
    pub fn replicas(&self) -> Result<Vec<usize>> {
        let master = self.master()?;
        Ok((0..self.nodes.len()).filter(|node| *node != master).collect())
    }

    /// Orders a fail-over, which does not need a dead master. See [`Self::wait_for_new_master`].
    ///
    /// # Errors
    ///
    /// If the sentinel refuses.
    pub fn failover(&self) -> Result<()> {
        let sentinel = self.sentinels.iter().find(|s| s.process.is_running());
        let sentinel = sentinel.ok_or_else(|| Error::new("no sentinel runs"))?;
        sentinel.command(&["SENTINEL", "FAILOVER", &self.name])?.ok().map(drop)
    }

    /// Kills the master, and tells which node it was.
    ///
    /// # Errors
    ///
    /// As [`Self::master`].
    pub fn kill_master(&mut self) -> Result<usize> {
        let master = self.master()?;
        self.nodes[master].kill();
        Ok(master)
    }

    /// Waits until all running sentinels name another master than this node, and it says so, too.
    ///
    /// # Errors
    ///
    /// If that does not come true within `limit`.
    pub fn wait_for_new_master(&self, old: usize, limit: Duration) -> Result<usize> {
        until(limit, "a new master", || {
            let master = self.master()?;
            if master == old {
                return Err(Error::new(format!("it is node {old} still")));
            }
            match self.nodes[master].info("role")?.as_str() {
                "master" => Ok(master),
                role => Err(Error::new(format!("node {master} says {role}"))),
            }
        })
    }

    /// Waits until the running sentinels agree on the master and see one another, and all running
    /// servers follow the master and are known to the sentinels.
    ///
    /// # Errors
    ///
    /// If that does not come true within `limit`.
    pub fn wait_settled(&mut self, limit: Duration) -> Result<()> {
        until(limit, "the set to settle", || self.is_settled()).map_err(|e| {
            let log = self.sentinels.first().map(|it| it.log()).unwrap_or_default();
            Error::new(format!("{e}; the first sentinel's log:\n{log}"))
        })
    }

    fn is_settled(&self) -> Result<()> {
        let master = self.master()?;
        let running = |node: &&Node| node.is_running();
        for node in self.nodes.iter().filter(running) {
            let follows = match node.address_port() == self.nodes[master].address_port() {
                true => node.info("role")? == "master",
                false => {
                    node.info("master_link_status").is_ok_and(|status| status == "up")
                        && node.info("master_port")?
                            == self.nodes[master].address_port().to_string()
                }
            };
            if !follows {
                return Err(Error::new(format!("node on port {} does not follow", node.port())));
            }
        }
        let sentinels: Vec<&Sentinel> =
            self.sentinels.iter().filter(|s| s.process.is_running()).collect();
        let replicas = self.nodes.iter().filter(running).count() - 1;
        // After a copy without a disk the master sends its writes only when the replica has first
        // acknowledged, up to a second after both call it online.
        for replica in 0..replicas {
            let state = self.nodes[master].info(&format!("slave{replica}"))?;
            if !state.contains("state=online") || state.contains(",offset=0,") {
                return Err(Error::new(format!("a replica has acknowledged nothing: {state}")));
            }
        }
        for sentinel in &sentinels {
            for (what, flags, least) in
                [("REPLICAS", "slave", replicas), ("SENTINELS", "sentinel", sentinels.len() - 1)]
            {
                let known = sentinel.command(&["SENTINEL", what, &self.name])?.ok()?;
                // Sentinels of Valkey 9 still show what a peer has said of the master before.
                let is_up = |flags_of: String| {
                    flags_of.split(',').filter(|flag| *flag != "master_down").eq([flags])
                };
                let healthy =
                    known.list().iter().filter(|peer| peer.field("flags").is_some_and(is_up));
                let follows = |peer: &&Value| {
                    peer.field("master-link-status").is_none_or(|status| status == "ok")
                };
                if healthy.filter(follows).count() < least {
                    return Err(Error::new(format!("{what} not all seen: {known:?}")));
                }
            }
        }
        Ok(())
    }
}

/// Starts sentinels that know each other and the replicas from their files, so that they need not
/// find each other first, which takes seconds.
fn launch_sentinels(options: &SentinelOptions, servers: &[u16]) -> Result<Vec<Sentinel>> {
    let name = &options.name;
    let mut ports = Vec::new();
    for _ in 0..SENTINELS {
        ports.push(Port::reserve()?);
    }
    let id = |port: u16| format!("{port:040x}");
    let numbers: Vec<u16> = ports.iter().map(Port::number).collect();
    let mut sentinels = Vec::new();
    for port in ports {
        let mut conf = vec![
            format!("sentinel myid {}", id(port.number())),
            format!("sentinel monitor {name} 127.0.0.1 {} 2", servers[0]),
            format!("sentinel down-after-milliseconds {name} {}", options.down_after.as_millis()),
            format!("sentinel failover-timeout {name} {}", options.failover_timeout.as_millis()),
            format!("sentinel parallel-syncs {name} {}", servers.len()),
        ];
        let replicas = servers.iter().skip(1);
        conf.extend(replicas.map(|r| format!("sentinel known-replica {name} 127.0.0.1 {r}")));
        let peers = numbers.iter().filter(|number| **number != port.number());
        conf.extend(
            peers.map(|p| format!("sentinel known-sentinel {name} 127.0.0.1 {p} {}", id(*p))),
        );
        sentinels.push(Sentinel::launch(port, &conf)?);
    }
    sentinels.iter().try_for_each(Sentinel::await_ready)?;
    Ok(sentinels)
}
