//! A Cluster that falls apart: a master is cut off from the others, and some workers with it.

use std::net::Ipv4Addr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use latchwork_services::{Error, Proxy, RedisCluster, Result};
use latchwork_store::Moment;
use latchwork_store::clock::boot_time;

use crate::luck::Luck;
use crate::pause::pause;

/// How long a node may be silent until the others take it for dead.
pub(super) const NODE_TIMEOUT: Duration = Duration::from_secs(1);
/// The same for the nodes that are cut off: the master among them goes on for longer than it takes
/// to replace it, so that for a while two masters serve the same slots. `deposed` must cover it.
const NODE_TIMEOUT_CUT_OFF: Duration = Duration::from_secs(4);

/// The ways of the two halves of the workers to each node, in the order of the nodes.
#[derive(Debug)]
pub(super) struct Ways {
    sides: [Vec<Proxy>; 2],
    splits: Mutex<Vec<Split>>,
}

/// A master of a Cluster that was cut off and replaced, with some workers on its side.
#[derive(Debug, Clone, Copy)]
pub struct Split {
    /// The side that stayed with it: that of the workers whose number, modulo 2, is this.
    pub left: usize,
    /// When its successor served.
    pub replaced: Moment,
    /// When the partition began to end.
    pub healed: Moment,
}

impl Ways {
    const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 0, 2, 1), Ipv4Addr::new(127, 0, 2, 2)];

    pub(super) fn open(cluster: &RedisCluster) -> Result<Self> {
        let [one, two] = Self::ADDRESSES;
        let sides = [cluster.side(one)?, cluster.side(two)?];
        Ok(Self { sides, splits: Mutex::default() })
    }

    pub(super) fn urls(&self, cluster: &RedisCluster) -> Vec<String> {
        Self::ADDRESSES.iter().map(|side| cluster.url_at(*side)).collect()
    }

    pub(super) fn splits(&self) -> Vec<Split> {
        self.splits.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The ways that lead from one part of the partition into the other.
    fn across<'a>(&'a self, left: usize, island: &'a [usize]) -> impl Iterator<Item = &'a Proxy> {
        self.sides.iter().enumerate().flat_map(move |(side, ways)| {
            let ways = ways.iter().enumerate();
            // Workers that are left behind reach the island, the others the rest.
            let across = ways.filter(move |(n, _)| island.contains(n) != (side == left));
            across.map(|(_, way)| way)
        })
    }
}

/// Who is where.
struct Partition {
    slot: u16,
    old: usize,
    /// The master, and perhaps one of its replicas.
    island: Vec<usize>,
    /// The side of the workers that are on the island.
    left: usize,
}

/// Cuts a master off until it was replaced, and for two to three ttls more.
pub(super) fn split(
    cluster: &RedisCluster,
    ways: &Ways,
    luck: &mut Luck,
    ttl: Duration,
    limit: Duration,
) -> Result<()> {
    let (old, slot) = busiest(cluster)?;
    let mut island = vec![old];
    if luck.percent(50) {
        let replicas = cluster.replicas_of(old)?;
        island.extend(replicas.get(luck.below(replicas.len())));
    }
    let it = Partition { slot, old, island, left: luck.below(2) };
    let clients_first = luck.percent(50);
    let length = luck.times(ttl, 2.0..3.0);

    set_timeout(cluster, &it.island, NODE_TIMEOUT_CUT_OFF)?;
    ways.across(it.left, &it.island).for_each(|way| way.silence(true));
    cluster.isolate(&it.island)?;
    let outcome = two_masters(cluster, ways, &it, length, limit);
    if !clients_first {
        cluster.reunite();
        pause(ttl / 4);
    }
    ways.across(it.left, &it.island).for_each(|way| way.silence(false));
    if clients_first {
        pause(ttl / 4);
        cluster.reunite();
    }
    set_timeout(cluster, &it.island, NODE_TIMEOUT)?;
    outcome?;
    cluster.wait_ok(limit)
}

/// The master with the most keys, and a slot of it: a split between workers shows little where they
/// want few locks.
fn busiest(cluster: &RedisCluster) -> Result<(usize, u16)> {
    let mut busiest = (0, 0, 0);
    // A third of the slots each.
    for slot in [0, 8_192, 16_383] {
        let node = cluster.node_of_slot(slot)?;
        let size = cluster.nodes()[node].command(&["DBSIZE"]).and_then(|answer| answer.ok());
        let size = size?.text().parse::<u64>().map_err(|e| Error::new(e.to_string()))?;
        busiest = busiest.max((size, node, slot));
    }
    let (_, node, slot) = busiest;
    Ok((node, slot))
}

/// Waits for the successor, lets both go on for a while, and makes sure that there were two: that
/// each answered the workers on its side, and that the old master did not hear of the new one.
fn two_masters(
    cluster: &RedisCluster,
    ways: &Ways,
    it: &Partition,
    length: Duration,
    limit: Duration,
) -> Result<()> {
    let new = successor(cluster, it, limit)?;
    let replaced = boot_time();
    let (near, far) = (&ways.sides[it.left][it.old], &ways.sides[1 - it.left][new]);
    let before = [near.counts(), far.counts()];
    pause(length);
    let after = [near.counts(), far.counts()];
    let healed = boot_time();
    for (who, (before, after)) in ["replaced", "promoted"].iter().zip(before.iter().zip(&after)) {
        let scripts = after["EVALSHA"] + after["EVAL"] - before["EVALSHA"] - before["EVAL"];
        if scripts == 0 || after.answers == before.answers {
            let message = format!("no split: the {who} master answered no worker in {length:?}");
            return Err(Error::new(message));
        }
    }
    if !cluster.is_master_of(it.old, it.slot)? {
        return Err(Error::new("no split: the replaced master heard of its successor"));
    }
    let split = Split { left: it.left, replaced, healed };
    ways.splits.lock().unwrap_or_else(PoisonError::into_inner).push(split);
    Ok(())
}

/// The node that serves the slot in place of the one that is cut off.
fn successor(cluster: &RedisCluster, it: &Partition, limit: Duration) -> Result<usize> {
    let until = boot_time().plus(limit);
    while boot_time() < until {
        let new = cluster.node_of_slot(it.slot)?;
        if new != it.old && cluster.serves(new, it.slot)? {
            return Ok(new);
        }
        pause(Duration::from_millis(10));
    }
    Err(Error::new(format!("no split: nobody replaced the master within {limit:?}")))
}

fn set_timeout(cluster: &RedisCluster, nodes: &[usize], timeout: Duration) -> Result<()> {
    let millis = timeout.as_millis().to_string();
    nodes.iter().try_for_each(|node| {
        let set = ["CONFIG", "SET", "cluster-node-timeout", &millis];
        let answer = cluster.nodes()[*node].command(&set).and_then(|answer| answer.ok());
        answer.map(drop)
    })
}
