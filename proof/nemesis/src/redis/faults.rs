//! What is done to Redis servers, by name.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork_services::{
    Cut, Data, Loss, Lost, Node, Proxy, RedisCluster, RedisServer, Result, SentinelSet,
};

use super::split::{Ways, split};
use super::{Set, Sides, VOTERS, Voter};
use crate::faults::Nemesis;
use crate::luck::Luck;
use crate::pause::pause;
use crate::repeated::{Repeated, millis};
use crate::stores::the;

/// How long a set may take to come to a new master.
const LIMIT: Duration = Duration::from_secs(30);

const SINGLE: &[&str] = &[
    "cuts",
    "lost-answers",
    "late-answers",
    "lost-messages",
    "flush-scripts",
    "freeze",
    "restart",
    "lose-data",
    "old-data",
    "flush-all",
];
const SENTINEL: &[&str] = &["failover", "hang", "split"];
const CLUSTER: &[&str] = &["node-loss", "node-hang", "split"];
const REDLOCK: &[&str] = &[
    "cuts",
    "late-answers",
    "partition",
    "freeze",
    "freeze-most",
    "restart",
    "lose-data",
    "old-data",
];

/// The names of all faults of these servers.
pub(super) fn names(set: &Set) -> &'static [&'static str] {
    match set {
        Set::Single(..) => SINGLE,
        Set::Sentinel(..) => SENTINEL,
        Set::Cluster(..) => CLUSTER,
        Set::Redlock(_) => REDLOCK,
    }
}

/// The fault of this name.
pub(super) fn of(set: &Set, name: &str, ttl: Duration) -> Option<Box<dyn Nemesis>> {
    match set {
        Set::Single(server, proxy) => single(server, proxy, name, ttl),
        Set::Sentinel(set, sides) => sentinel(set, sides, name, ttl),
        Set::Cluster(cluster, ways) => cluster_of(cluster, ways, name, ttl),
        Set::Redlock(voters) => redlock(voters, name, ttl),
    }
}

fn single(
    server: &Arc<Mutex<RedisServer>>,
    proxy: &Arc<Proxy>,
    name: &str,
    ttl: Duration,
) -> Option<Box<dyn Nemesis>> {
    let (server, proxy) = (server.clone(), proxy.clone());
    let often = ttl / 4..ttl;
    Some(match name {
        "cuts" => Repeated::boxed("cuts", millis(10, 200), move |luck| {
            let how = if luck.percent(50) { Cut::Reset } else { Cut::Finish };
            proxy.cut(how)
        }),
        "lost-answers" => Repeated::boxed("lost-answers", millis(5, 50), move |luck| {
            if luck.percent(95) {
                let nth = 1 + luck.below(20) as u64;
                let what = if luck.percent(70) { Lost::Answer } else { Lost::Command };
                proxy.lose(Loss { of: None, nth, what, cut: Some(Cut::Reset) });
                return Ok(());
            }
            proxy.lose_answers(true);
            pause(luck.times(ttl, 0.05..0.5));
            let cut = proxy.cut(Cut::Reset);
            proxy.lose_answers(false);
            cut
        }),
        "late-answers" => Repeated::boxed("late-answers", millis(1, 100), move |luck| {
            use latchwork_services::Direction::ToClient;
            proxy.delay(ToClient, luck.times(ttl, 0.05..0.2));
            pause(luck.times(ttl, 0.1..0.5));
            proxy.delay(ToClient, Duration::ZERO);
            Ok(())
        }),
        "lost-messages" => Repeated::boxed("lost-messages", millis(1, 100), move |luck| {
            proxy.lose_pushes(true);
            pause(luck.times(ttl, 0.1..1.0));
            proxy.lose_pushes(false);
            Ok(())
        }),
        "flush-scripts" => Repeated::boxed("flush-scripts", millis(1, 50), move |_| {
            told(&the(&server), &["SCRIPT", "FLUSH"])
        }),
        "freeze" => Repeated::boxed("freeze", often, move |luck| {
            let mut server = the(&server);
            server.stop()?;
            pause(luck.times(ttl, 0.1..1.2));
            server.cont()
        }),
        "restart" => Repeated::boxed("restart", often, move |_| the(&server).restart(Data::Kept)),
        "lose-data" => {
            Repeated::boxed("lose-data", often, move |_| the(&server).restart(Data::Empty))
        }
        "old-data" => Repeated::boxed("old-data", often, move |luck| {
            the(&server).save_snapshot()?;
            pause(luck.times(ttl, 0.1..0.8));
            the(&server).restart(Data::OldSnapshot)
        }),
        "flush-all" => {
            Repeated::boxed("flush-all", often, move |_| told(&the(&server), &["FLUSHALL"]))
        }
        _ => return None,
    })
}

fn told(server: &RedisServer, words: &[&str]) -> Result<()> {
    let answer = server.command(words).and_then(|answer| answer.ok());
    answer.map(drop)
}

/// Kills a master that has served its clients for a while without its replicas, as one does whose
/// links to them have broken.
fn kill_ahead<S>(
    set: &mut S,
    node: fn(&mut S, usize) -> &mut Node,
    master: usize,
    replicas: &[usize],
    lag: Duration,
) -> Result<()> {
    // What they were sent they would still read.
    replicas.iter().try_for_each(|n| node(set, *n).stop())?;
    told(node(set, master), &["CLIENT", "KILL", "TYPE", "replica"])?;
    pause(lag);
    node(set, master).kill();
    replicas.iter().try_for_each(|n| node(set, *n).cont())
}

/// What a replica or a Sentinel sends to a server. Without the right to it they take it for dead,
/// while its clients are served as before.
const BETWEEN_SERVERS: [&str; 4] = ["ping", "psync", "sync", "replconf"];

/// Parts a server from its replicas and the Sentinels, but not from its clients; or undoes that.
fn part(server: &RedisServer, away: bool) -> Result<()> {
    let sign = if away { '-' } else { '+' };
    let rights = BETWEEN_SERVERS.map(|name| format!("{sign}{name}"));
    let words = ["ACL", "SETUSER", "default"].into_iter();
    told(server, &words.chain(rights.iter().map(String::as_str)).collect::<Vec<_>>())?;
    if away {
        told(server, &["CLIENT", "KILL", "TYPE", "replica"])?;
    }
    Ok(())
}

fn sentinel(
    set: &Arc<Mutex<SentinelSet>>,
    sides: &Arc<Sides>,
    name: &str,
    ttl: Duration,
) -> Option<Box<dyn Nemesis>> {
    let (set, sides) = (set.clone(), sides.clone());
    Some(match name {
        // The master dies ahead of its replicas, and comes back as an empty one.
        "failover" => Repeated::boxed("failover", ttl..ttl * 2, move |luck| {
            let mut set = the(&set);
            let old = set.master()?;
            let replicas = set.replicas()?;
            let lag = luck.times(ttl, 0.3..0.7);
            kill_ahead(&mut *set, SentinelSet::node_mut, old, &replicas, lag)?;
            set.wait_for_new_master(old, LIMIT)?;
            pause(luck.times(ttl, 0.0..0.5));
            set.node_mut(old).restart(Data::Kept)?;
            set.wait_settled(LIMIT)
        }),
        // The master and half of the clients are on one side, everybody else is on the other.
        "split" => Repeated::boxed("split", ttl..ttl * 2, move |luck| {
            let mut set = the(&set);
            let old = set.master()?;
            let left = &sides.0[luck.below(sides.0.len())];
            left.iter().for_each(|way| way.silence(true));
            part(set.node_mut(old), true)?;
            let new = set.wait_for_new_master(old, LIMIT);
            pause(luck.times(ttl, 0.3..1.5));
            left.iter().for_each(|way| way.silence(false));
            part(set.node_mut(old), false)?;
            new?;
            set.wait_settled(LIMIT)
        }),
        // The master stands still, is replaced, and goes on without knowing it.
        "hang" => Repeated::boxed("hang", ttl..ttl * 2, move |luck| {
            let mut set = the(&set);
            let old = set.master()?;
            set.node_mut(old).stop()?;
            let new = set.wait_for_new_master(old, LIMIT);
            pause(luck.times(ttl, 0.0..0.5));
            set.node_mut(old).cont()?;
            new?;
            set.wait_settled(LIMIT)
        }),
        _ => return None,
    })
}

fn cluster_of(
    cluster: &Arc<Mutex<RedisCluster>>,
    ways: &Arc<Ways>,
    name: &str,
    ttl: Duration,
) -> Option<Box<dyn Nemesis>> {
    let (cluster, ways) = (cluster.clone(), ways.clone());
    let kills = match name {
        // A master and half of the clients are on one side, everybody else is on the other.
        "split" => {
            return Some(Repeated::boxed("split", ttl..ttl * 2, move |luck| {
                split(&the(&cluster), &ways, luck, ttl, LIMIT)
            }));
        }
        "node-loss" => true,
        "node-hang" => false,
        _ => return None,
    };
    let name = if kills { "node-loss" } else { "node-hang" };
    Some(Repeated::boxed(name, ttl..ttl * 2, move |luck| {
        let mut cluster = the(&cluster);
        let slot = luck.below(16_384) as u16;
        let old = cluster.node_of_slot(slot)?;
        if kills {
            let nodes = cluster.nodes().iter().enumerate();
            let slaves = nodes.filter(|(_, node)| node.info("role").is_ok_and(|r| r == "slave"));
            let replicas: Vec<_> = slaves.map(|(n, _)| n).collect();
            let lag = luck.times(ttl, 0.3..0.7);
            kill_ahead(&mut *cluster, RedisCluster::node_mut, old, &replicas, lag)?;
        } else {
            cluster.node_mut(old).stop()?;
        }
        let new = cluster.wait_for_new_master(slot, old, LIMIT);
        pause(luck.times(ttl, 0.0..0.5));
        let node = cluster.node_mut(old);
        if kills {
            node.restart(Data::Kept)?;
        } else {
            node.cont()?;
        }
        new?;
        cluster.wait_ok(LIMIT)
    }))
}

/// Some of the servers that vote, by lot.
fn some(luck: &mut Luck, count: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (0..VOTERS).collect();
    (0..count).map(|_| all.swap_remove(luck.below(all.len()))).collect()
}

/// Of the five, one or two are disturbed, or, to stop all locks, three.
fn redlock(voters: &Arc<[Voter]>, name: &str, ttl: Duration) -> Option<Box<dyn Nemesis>> {
    use latchwork_services::Direction::ToClient;
    let voters = voters.clone();
    let often = ttl / 4..ttl;
    let few = |luck: &mut Luck| {
        let count = 1 + luck.below(2);
        some(luck, count)
    };
    Some(match name {
        "cuts" => Repeated::boxed("cuts", millis(10, 200), move |luck| {
            let how = if luck.percent(50) { Cut::Reset } else { Cut::Finish };
            let cut = |n: usize| voters[n].proxy.cut(how);
            few(luck).into_iter().try_for_each(|n| cut(n).map(drop))
        }),
        "late-answers" => Repeated::boxed("late-answers", millis(1, 100), move |luck| {
            let slow = few(luck);
            let late = luck.times(ttl, 0.05..0.5);
            slow.iter().for_each(|n| voters[*n].proxy.delay(ToClient, late));
            pause(luck.times(ttl, 0.1..0.5));
            slow.iter().for_each(|n| voters[*n].proxy.delay(ToClient, Duration::ZERO));
            Ok(())
        }),
        "partition" => Repeated::boxed("partition", often, move |luck| {
            let away = few(luck);
            away.iter().for_each(|n| voters[*n].proxy.silence(true));
            pause(luck.times(ttl, 0.1..1.2));
            away.iter().for_each(|n| voters[*n].proxy.silence(false));
            Ok(())
        }),
        "freeze" | "freeze-most" => {
            let most = name == "freeze-most";
            let name = if most { "freeze-most" } else { "freeze" };
            Repeated::boxed(name, often, move |luck| {
                let stopped = if most { some(luck, 3) } else { few(luck) };
                let each = |then: fn(&mut RedisServer) -> Result<()>| {
                    let all = stopped.iter().map(|n| then(&mut the(&voters[*n].server)));
                    all.collect::<Result<Vec<()>>>()
                };
                each(|server| server.stop())?;
                pause(luck.times(ttl, 0.1..1.2));
                each(|server| server.cont()).map(drop)
            })
        }
        "restart" => restarts("restart", &voters, often, |_| Ok(Data::Kept)),
        "lose-data" => restarts("lose-data", &voters, often, |_| Ok(Data::Empty)),
        "old-data" => restarts("old-data", &voters, often, move |server| {
            server.save_snapshot()?;
            pause(ttl / 2);
            Ok(Data::OldSnapshot)
        }),
        _ => return None,
    })
}

/// Restarts three servers, one after the other: more than enough to forget a lock.
fn restarts(
    name: &'static str,
    voters: &Arc<[Voter]>,
    often: std::ops::Range<Duration>,
    with: impl Fn(&mut RedisServer) -> Result<Data> + Send + Sync + 'static,
) -> Box<dyn Nemesis> {
    let voters = voters.clone();
    Repeated::boxed(name, often, move |luck| {
        for n in some(luck, 3) {
            let mut server = the(&voters[n].server);
            let data = with(&mut server)?;
            server.restart(data)?;
        }
        Ok(())
    })
}
