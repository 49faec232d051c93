//! The order in which claims for the same key ask the nodes.
//!
//! If all who wait ask all nodes at once when a key comes free, each gets the votes of a few nodes,
//! and nobody a majority. So who has reason to expect others asks one node first, the same for all of
//! them, and the rest only if that one says yes. It decides nothing: a majority still does. If it is
//! silent or odd, all are asked.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use latchwork_store::random_between;
use latchwork_store::{Key, Moment};

/// How long others are expected at a key after a release by somebody who had to wait for it.
const MEMORY: Duration = Duration::from_millis(250);
/// How long a node that misled or kept silent is not asked first.
const DOUBT: Duration = Duration::from_secs(1);
/// Bounds of what is taken for a round trip.
const TRIP: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(10));

/// What this process knows of the nodes and of the keys that others want.
pub(super) struct NodeOrder {
    /// A number for each node, from its address, so that other processes rank them alike.
    names: Vec<u64>,
    /// Until when each node is not asked first.
    doubted: Vec<AtomicU64>,
    /// Until when others are expected, for all keys that share a place. A wrong guess costs a
    /// round trip.
    contested: [AtomicU64; 256],
    /// The usual round trip in nanoseconds.
    trip: AtomicU64,
}

impl NodeOrder {
    pub(super) fn new<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let names: Vec<u64> = names.map(hash).collect();
        Self {
            doubted: names.iter().map(|_| AtomicU64::new(0)).collect(),
            names,
            contested: [const { AtomicU64::new(0) }; 256],
            trip: AtomicU64::new(0),
        }
    }

    /// The node to ask first for a key: another one for other keys, to spread the load.
    pub(super) fn first(&self, key: &Key, now: Moment) -> usize {
        let key = hash(key.as_str());
        let trusted = |node: &usize| self.doubted[*node].load(Ordering::Relaxed) <= now.as_nanos();
        let rank = |node: &usize| (trusted(node), mix(self.names[*node] ^ key));
        (0..self.names.len()).max_by_key(rank).unwrap_or_default()
    }

    /// The node was asked first and was of no use.
    pub(super) fn doubt(&self, node: usize, now: Moment) {
        self.doubted[node].store(now.plus(DOUBT).as_nanos(), Ordering::Relaxed);
    }

    fn place(&self, key: &Key) -> &AtomicU64 {
        &self.contested[mix(hash(key.as_str())) as usize % self.contested.len()]
    }

    /// Whether others are expected to want the key.
    pub(super) fn is_contested(&self, key: &Key, now: Moment) -> bool {
        self.place(key).load(Ordering::Relaxed) > now.as_nanos()
    }

    /// Others are likely to wait for the key.
    pub(super) fn contest(&self, key: &Key, now: Moment) {
        self.place(key).store(now.plus(MEMORY).as_nanos(), Ordering::Relaxed);
    }

    /// Takes the time of a round trip into the mean.
    pub(super) fn learn(&self, trip: Duration) {
        let trip = trip.as_nanos() as u64;
        let known = self.trip.load(Ordering::Relaxed);
        let mean = if known == 0 { trip } else { known - known / 8 + trip / 8 };
        self.trip.store(mean, Ordering::Relaxed);
    }

    fn trip(&self) -> Duration {
        Duration::from_nanos(self.trip.load(Ordering::Relaxed)).clamp(TRIP.0, TRIP.1)
    }

    /// How long a newcomer defers to clients already waiting.
    pub(super) fn courtesy(&self) -> Duration {
        random_between(self.trip() * 2, self.trip() * 4)
    }

    /// How long the first node has to answer before the others are asked too.
    pub(super) fn patience(&self) -> Duration {
        self.trip() * 8
    }
}

/// FNV-1a: the same in every process.
fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Spreads the bits.
fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    value = (value ^ (value >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    value ^ (value >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_node_does_not_depend_on_address_order() {
        let (one, other) = (
            NodeOrder::new(["a", "b", "c"].into_iter()),
            NodeOrder::new(["c", "a", "b"].into_iter()),
        );
        let (now, mut asked) = (Moment::from_nanos(1), [0; 3]);
        for n in 0..300 {
            let key = Key::new(format!("k/{n}")).unwrap();
            let first = one.first(&key, now);
            assert_eq!((first + 1) % 3, other.first(&key, now));
            asked[first] += 1;
        }
        assert!(asked.iter().all(|times| *times > 50), "{asked:?}");
    }

    #[test]
    fn a_suspect_node_is_not_asked_first() {
        let node_order = NodeOrder::new(["a", "b"].into_iter());
        let (now, key) = (Moment::from_nanos(1), Key::new("k").unwrap());
        let first = node_order.first(&key, now);
        node_order.doubt(first, now);
        assert_ne!(node_order.first(&key, now), first);
        assert_eq!(node_order.first(&key, now.plus(DOUBT)), first);
    }
}
