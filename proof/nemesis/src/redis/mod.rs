//! Redis servers of a run, what is done to them, and what they cannot promise then.
//!
//! [`Servers::start`] starts them. As a [`Store`], they give a plan the faults, the exceptions that
//! the documentation of Latchwork names for them, and a look at all keys at the end.

mod faults;
mod leftovers;
mod split;

use std::io;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork_services::{
    ClusterOptions, Node, Persistence, Proxy, RedisCluster, RedisOptions, RedisServer,
    SentinelOptions, SentinelSet,
};

use crate::faults::{Lister, Nemesis};
use crate::stores::{GUARDED, OLDER_STATE, ServerLog, Store, TWO_HOLDERS, the, with_options};
use leftovers::Leftovers;
pub use split::Split;
use split::{NODE_TIMEOUT, Ways};

/// What is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One server that syncs every write to its disk, behind a proxy.
    Single,
    /// A master, two replicas and three Sentinels.
    Sentinel,
    /// Three masters with two replicas each.
    Cluster,
    /// Five servers that know nothing of each other, each behind a proxy, and vote.
    Redlock,
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "single" => Ok(Self::Single),
            "sentinel" => Ok(Self::Sentinel),
            "cluster" => Ok(Self::Cluster),
            "redlock" => Ok(Self::Redlock),
            _ => Err(format!("{text:?} is unknown; single, sentinel, cluster and redlock are")),
        }
    }
}

/// Redis servers for one run. They end with this value and the plans that they have armed.
#[derive(Debug)]
pub struct Servers {
    set: Set,
    options: String,
}

#[derive(Debug, Clone)]
enum Set {
    Single(Arc<Mutex<RedisServer>>, Arc<Proxy>),
    Sentinel(Arc<Mutex<SentinelSet>>, Arc<Sides>),
    Cluster(Arc<Mutex<RedisCluster>>, Arc<Ways>),
    Redlock(Arc<[Voter]>),
}

/// The two ways to the Sentinels, one for each half of the workers. The half whose way is frozen
/// does not hear of a failover.
#[derive(Debug)]
struct Sides([Vec<Proxy>; 2]);

impl Sides {
    fn open(set: &SentinelSet) -> latchwork_services::Result<Self> {
        let side = || -> latchwork_services::Result<Vec<Proxy>> {
            set.sentinel_ports().into_iter().map(Proxy::plain).collect()
        };
        Ok(Self([side()?, side()?]))
    }

    fn urls(&self, name: &str) -> Vec<String> {
        let hosts = |side: &Vec<Proxy>| {
            let hosts = side.iter().map(|proxy| format!("127.0.0.1:{}", proxy.port()));
            hosts.collect::<Vec<_>>().join(",")
        };
        self.0.iter().map(|side| format!("redis+sentinel://{}/{name}", hosts(side))).collect()
    }
}

/// One of the servers that vote, and the way to it.
#[derive(Debug)]
struct Voter {
    server: Mutex<RedisServer>,
    proxy: Proxy,
}

const VOTERS: usize = 5;

/// The faults after which the server that is asked has what it had before.
const KEEPS_ITS_DATA: [&str; 9] = [
    "cuts",
    "lost-answers",
    "late-answers",
    "lost-messages",
    "flush-scripts",
    "freeze",
    "freeze-most",
    "partition",
    "restart",
];

impl Servers {
    /// Starts servers, to be used with these options of a Latchwork address (`guard=true&...`).
    ///
    /// # Errors
    ///
    /// What kept them from starting.
    pub fn start(kind: Kind, options: &str) -> io::Result<Self> {
        let set = match kind {
            Kind::Single => {
                let kept = RedisOptions::new().persistence(Persistence::EveryWrite);
                let server = RedisServer::start(&kept)?;
                let proxy = Proxy::redis(server.port())?;
                Set::Single(Arc::new(Mutex::new(server)), Arc::new(proxy))
            }
            Kind::Sentinel => {
                let down_after = Duration::from_millis(500);
                // A master without a replica stops writing, as docs/guard.md asks for.
                let redis = RedisOptions::new()
                    .config("min-replicas-to-write 1")
                    .config("min-replicas-max-lag 1");
                let redis =
                    if options.contains("guard=true") { redis } else { RedisOptions::new() };
                let options = SentinelOptions { down_after, redis, ..SentinelOptions::default() };
                let set = SentinelSet::start(&options)?;
                let sides = Sides::open(&set)?;
                Set::Sentinel(Arc::new(Mutex::new(set)), Arc::new(sides))
            }
            Kind::Cluster => {
                let options = ClusterOptions {
                    node_timeout: NODE_TIMEOUT,
                    // One may stay with a master that is cut off, and the other be promoted.
                    replicas: 2,
                    partitions: true,
                    ..ClusterOptions::default()
                };
                let cluster = RedisCluster::start(&options)?;
                let ways = Ways::open(&cluster)?;
                Set::Cluster(Arc::new(Mutex::new(cluster)), Arc::new(ways))
            }
            Kind::Redlock => {
                let kept = RedisOptions::new().persistence(Persistence::EveryWrite);
                let voter = |_| {
                    let server = RedisServer::start(&kept)?;
                    let proxy = Proxy::redis(server.port())?;
                    Ok::<_, latchwork_services::Error>(Voter { server: Mutex::new(server), proxy })
                };
                let voters: Result<_, _> = (0..VOTERS).map(voter).collect();
                Set::Redlock(voters?)
            }
        };
        let servers = Self { set, options: options.to_owned() };
        servers.prepare()?;
        Ok(servers)
    }

    /// Takes the quarantine off servers that cannot prove yet that they have lost nothing: where
    /// several vote, and where each slot would have one of its own.
    fn prepare(&self) -> io::Result<()> {
        let prepares = match self.set {
            Set::Redlock(_) => true,
            Set::Cluster(..) => self.has("guard=true"),
            Set::Single(..) | Set::Sentinel(..) => false,
        };
        if prepares {
            let url = self.url();
            latchwork::block_on(latchwork::init(&url)).map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// How the fault `split` has parted a Cluster until now.
    pub fn splits(&self) -> Vec<Split> {
        match &self.set {
            Set::Cluster(_, ways) => ways.splits(),
            _ => Vec::new(),
        }
    }

    fn has(&self, option: &str) -> bool {
        self.options.split('&').any(|known| known == option)
    }

    /// Whether there may be two holders after this fault, as the documentation says: the server
    /// has forgotten, the guard is off, and the replica that took over need not have known.
    fn overlaps(&self, fault: &str) -> bool {
        match &self.set {
            Set::Single(..) => {
                matches!(fault, "lose-data" | "old-data" | "flush-all") && !self.has("guard=true")
            }
            Set::Redlock(_) => matches!(fault, "lose-data" | "old-data") && self.has("guard=false"),
            // A master has two replicas.
            Set::Sentinel(..) | Set::Cluster(..) => {
                !self.has("guard=true") && !self.has("min_replicas=2")
            }
        }
    }
}

impl Store for Servers {
    fn url(&self) -> String {
        let url = match &self.set {
            Set::Single(_, proxy) => proxy.url(),
            Set::Sentinel(set, _) => the(set).url(),
            Set::Cluster(cluster, _) => the(cluster).url(),
            Set::Redlock(voters) => {
                let at = |voter: &Voter| format!("127.0.0.1:{}", voter.proxy.port());
                format!("redlock://{}", voters.iter().map(at).collect::<Vec<_>>().join(","))
            }
        };
        with_options(&url, &self.options)
    }

    fn sides(&self) -> Vec<String> {
        let urls = match &self.set {
            Set::Sentinel(set, sides) => sides.urls(the(set).name()),
            Set::Cluster(cluster, ways) => ways.urls(&the(cluster)),
            Set::Single(..) | Set::Redlock(_) => Vec::new(),
        };
        urls.iter().map(|url| with_options(url, &self.options)).collect()
    }

    fn faults(&self) -> Vec<&'static str> {
        faults::names(&self.set).to_vec()
    }

    fn excused(&self, fault: &str) -> &'static [&'static str] {
        match (self.overlaps(fault), KEEPS_ITS_DATA.contains(&fault)) {
            (true, true) => TWO_HOLDERS,
            (true, false) => OLDER_STATE,
            // A claim of the same number with an older end: what the guard is there for.
            (false, false) => GUARDED,
            (false, true) => &[],
        }
    }

    fn nemesis(&self, fault: &str, ttl: Duration) -> Option<Box<dyn Nemesis>> {
        faults::of(&self.set, fault, ttl)
    }

    fn logs(&self) -> Vec<ServerLog> {
        let of = |(n, server): (usize, &RedisServer)| ServerLog::of(format!("redis-{n}"), server);
        let nodes = |nodes: &[Node]| nodes.iter().map(|it| &**it).enumerate().map(of).collect();
        match &self.set {
            Set::Single(server, _) => vec![of((0, &the(server)))],
            Set::Redlock(voters) => {
                voters.iter().enumerate().map(|(n, voter)| of((n, &the(&voter.server)))).collect()
            }
            Set::Cluster(cluster, _) => nodes(the(cluster).nodes()),
            Set::Sentinel(set, _) => {
                let set = the(set);
                let mut logs: Vec<_> = nodes(set.nodes());
                let sentinels = set.sentinels().iter().enumerate();
                logs.extend(sentinels.map(|(n, it)| ServerLog::of(format!("sentinel-{n}"), it)));
                logs
            }
        }
    }

    fn lister(&self) -> Option<Box<dyn Lister>> {
        Some(Box::new(Leftovers(self.set.clone())))
    }
}
