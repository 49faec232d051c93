//! How many threads a test binary gets, and how much of the machine it takes.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};

use super::binaries::Binary;

/// So many binaries run at a time at the most.
pub(crate) const SIDE_BY_SIDE: usize = 6;

/// So much weight runs at a time: tests that wait for a real clock must get the processor when they
/// wake up.
const CAPACITY: u32 = 8;

/// What a binary needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Needs {
    pub(crate) threads: u32,
    pub(crate) weight: u32,
    /// What takes longest begins first.
    rank: u32,
}

/// What is not named here computes for a moment.
const SHORT: Needs = Needs { threads: 2, weight: 1, rank: 0 };

const PLANS: &[(&str, &str, Needs)] = &[
    // Servers that start slowly, elections, ttls.
    ("latchwork-zookeeper", "it", Needs { threads: 6, weight: 3, rank: 10 }),
    ("latchwork-etcd", "it", Needs { threads: 10, weight: 2, rank: 9 }),
    ("latchwork-redis", "it", Needs { threads: 12, weight: 2, rank: 8 }),
    ("latchwork-redis", "contract", Needs { threads: 16, weight: 2, rank: 7 }),
    // Workers that are as busy as they can.
    ("latchwork-nemesis", "it", Needs { threads: 3, weight: 3, rank: 7 }),
    ("latchwork-cli", "it", Needs { threads: 10, weight: 2, rank: 6 }),
    ("latchwork-demo", "it", Needs { threads: 4, weight: 1, rank: 6 }),
    ("latchwork", "it", Needs { threads: 6, weight: 2, rank: 5 }),
    ("latchwork-file", "it", Needs { threads: 6, weight: 2, rank: 5 }),
    ("latchwork-zookeeper", "contract", Needs { threads: 16, weight: 2, rank: 5 }),
    ("latchwork-etcd", "contract", Needs { threads: 16, weight: 2, rank: 4 }),
    ("latchwork-file", "contract", Needs { threads: 16, weight: 1, rank: 3 }),
    ("latchwork-services", "it", Needs { threads: 4, weight: 2, rank: 3 }),
    // These compute.
    ("latchwork-model", "it", Needs { threads: 2, weight: 2, rank: 4 }),
    ("latchwork-quorum", "lib", Needs { threads: 2, weight: 2, rank: 3 }),
];

pub(crate) fn of(binary: &Binary) -> Needs {
    let plan = PLANS
        .iter()
        .find(|(package, target, _)| *package == binary.package && *target == binary.target);
    plan.map_or(SHORT, |(_, _, needs)| *needs)
}

/// The longest first.
pub(crate) fn in_order(mut binaries: Vec<Binary>) -> VecDeque<Binary> {
    binaries.sort_by_key(|binary| std::cmp::Reverse(of(binary).rank));
    binaries.into()
}

/// The machine: takes in no more than it has room for.
pub(crate) struct Room {
    taken: Mutex<u32>,
    left: Condvar,
}

impl Room {
    pub(crate) fn new() -> Self {
        Self { taken: Mutex::new(0), left: Condvar::new() }
    }

    /// Waits until there is room for so much.
    pub(crate) fn enter(&self, weight: u32) -> Place<'_> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |taken: &mut u32| *taken > 0 && *taken + weight > CAPACITY;
        let mut taken =
            self.left.wait_while(taken, is_full).unwrap_or_else(PoisonError::into_inner);
        *taken += weight;
        Place { room: self, weight }
    }
}

/// Room that was taken, given back when dropped.
pub(crate) struct Place<'a> {
    room: &'a Room,
    weight: u32,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        *self.room.taken.lock().unwrap_or_else(PoisonError::into_inner) -= self.weight;
        self.room.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binary(package: &str, target: &str) -> Binary {
        Binary {
            package: package.into(),
            target: target.into(),
            program: "p".into(),
            folder: ".".into(),
        }
    }

    #[test]
    fn the_longest_comes_first_and_nothing_is_lost() {
        let all = vec![binary("xtask", "xtask"), binary("latchwork-etcd", "it")];
        let order: Vec<_> = in_order(all).into_iter().map(|b| b.package).collect();
        assert_eq!(order, ["latchwork-etcd", "xtask"]);
        assert_eq!(of(&binary("new", "lib")), SHORT);
    }

    #[test]
    fn what_is_heavier_than_the_room_gets_in_alone() {
        let room = Room::new();
        let place = room.enter(CAPACITY * 2);
        drop(place);
        let _one = room.enter(1);
    }
}
