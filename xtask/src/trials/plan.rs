//! How many threads a test binary gets, and how much of the machine it takes.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};

use super::binaries::Binary;

/// So many binaries run at a time at the most.
pub(crate) const SIDE_BY_SIDE: usize = 4;

/// So much weight runs at a time: tests that wait for a real clock must get the processor when they
/// wake up.
const CAPACITY: u32 = 6;

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
    ("latchwork-etcd", "it", Needs { threads: 8, weight: 2, rank: 9 }),
    ("latchwork-redis", "it", Needs { threads: 6, weight: 2, rank: 9 }),
    ("latchwork-redis", "contract", Needs { threads: 10, weight: 3, rank: 7 }),
    // Workers that are as busy as they can.
    ("latchwork-nemesis", "it", Needs { threads: 2, weight: 5, rank: 7 }),
    ("latchwork-cli", "it", Needs { threads: 10, weight: 2, rank: 6 }),
    ("latchwork-demo", "it", Needs { threads: 4, weight: 1, rank: 6 }),
    ("latchwork", "it", Needs { threads: 6, weight: 2, rank: 5 }),
    ("latchwork-file", "it", Needs { threads: 6, weight: 2, rank: 5 }),
    ("latchwork-zookeeper", "contract", Needs { threads: 10, weight: 2, rank: 5 }),
    ("latchwork-etcd", "contract", Needs { threads: 10, weight: 2, rank: 4 }),
    ("latchwork-file", "contract", Needs { threads: 16, weight: 1, rank: 3 }),
    ("latchwork-services", "it", Needs { threads: 4, weight: 2, rank: 3 }),
    // These compute.
    ("latchwork-model", "it", Needs { threads: 2, weight: 2, rank: 4 }),
    ("latchwork-quorum", "lib", Needs { threads: 2, weight: 2, rank: 3 }),
];

/// Tests that hold or wait for thousands of locks, or set up as much: they take both processors for
/// their time, and what is answered late there fails. They run one at a time, when the others are
/// through.
const CROWDS: &[Named] = &[
    (
        "latchwork-etcd",
        "it",
        &[
            "a_thousand_claims_are_renewed",
            "a_claim_under_a_lease_with_time",
            "d8_a_lease_from_the_pool",
            "h98_a_thousand_quiet_holds",
            "h99_many_holds",
            "h111_a_list_of_many_locks",
        ],
    ),
    (
        "latchwork-redis",
        "it",
        &[
            "ten_thousand_held_locks",
            "long_lines::",
            "many_names::",
            "server_clock::",
            "h19_lost_answers_of_renewals",
            "h41_a_hold_outlives",
        ],
    ),
    ("latchwork-zookeeper", "it", &["h105_two_hundred_ttls", "storm::"]),
    ("latchwork-file", "it", &["h100_", "verbs::hostile_names"]),
    ("latchwork", "it", &["many_waiters::", "h97_a_busy_child"]),
];

/// Tests whose nodes have a few hundred milliseconds to answer, and sync each write: not many at a
/// time.
const TIGHT: &[Named] =
    &[("latchwork-redis", "it", &["redlock::"]), ("latchwork-redis", "contract", &["redlock::"])];

/// Tests of a package's program, by parts of their names.
type Named = (&'static str, &'static str, &'static [&'static str]);

/// One run of a binary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) binary: Binary,
    pub(crate) part: Part,
}

/// Which of its tests are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    All,
    /// Without those of the other parts.
    Without(&'static [&'static str], &'static [&'static str]),
    Crowds(&'static [&'static str]),
    Tight(&'static [&'static str]),
}

impl Run {
    pub(crate) fn name(&self) -> String {
        match self.part {
            Part::All | Part::Without(..) => self.binary.name(),
            Part::Crowds(_) => format!("{} crowds", self.binary.name()),
            Part::Tight(_) => format!("{} tight", self.binary.name()),
        }
    }

    /// The arguments that choose its tests.
    pub(crate) fn arguments(&self) -> Vec<&'static str> {
        match self.part {
            Part::All => Vec::new(),
            Part::Without(crowds, tight) => {
                crowds.iter().chain(tight).flat_map(|name| ["--skip", name]).collect()
            }
            Part::Crowds(names) | Part::Tight(names) => names.to_vec(),
        }
    }

    pub(crate) fn needs(&self) -> Needs {
        match self.part {
            Part::All | Part::Without(..) => of(&self.binary),
            Part::Tight(_) => Needs { threads: 3, weight: CAPACITY / 2, rank: 8 },
            // Beside what little is still to be done.
            Part::Crowds(_) => Needs { threads: 1, weight: CAPACITY / 2, rank: 0 },
        }
    }
}

/// All runs of the binaries: the longest first, the crowds last. No test is in two of them, unless it
/// has a crowd's and a tight one's name.
pub(crate) fn runs(binaries: Vec<Binary>) -> VecDeque<Run> {
    let (mut runs, mut crowds) = (Vec::new(), Vec::new());
    let named = |list: &'static [Named], binary: &Binary| {
        let is_it =
            |(package, target, _): &&Named| *package == binary.package && *target == binary.target;
        list.iter().find(is_it).map_or(&[][..], |(_, _, names)| *names)
    };
    for binary in binaries {
        let (crowd, tight) = (named(CROWDS, &binary), named(TIGHT, &binary));
        if crowd.is_empty() && tight.is_empty() {
            runs.push(Run { binary, part: Part::All });
            continue;
        }
        if !crowd.is_empty() {
            crowds.push(Run { binary: binary.clone(), part: Part::Crowds(crowd) });
        }
        if !tight.is_empty() {
            runs.push(Run { binary: binary.clone(), part: Part::Tight(tight) });
        }
        runs.push(Run { binary, part: Part::Without(crowd, tight) });
    }
    runs.sort_by_key(|run| std::cmp::Reverse(run.needs().rank));
    runs.extend(crowds);
    runs.into()
}

fn of(binary: &Binary) -> Needs {
    let plan = PLANS
        .iter()
        .find(|(package, target, _)| *package == binary.package && *target == binary.target);
    plan.map_or(SHORT, |(_, _, needs)| *needs)
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
        let order: Vec<_> = runs(all).iter().map(Run::name).collect();
        assert_eq!(order, ["latchwork-etcd it", "xtask xtask", "latchwork-etcd it crowds"]);
        assert_eq!(of(&binary("new", "lib")), SHORT);
    }

    #[test]
    fn each_test_is_in_one_run() {
        let runs = runs(vec![binary("latchwork-file", "it")]);
        let [rest, crowds] = [&runs[0], &runs[1]].map(Run::arguments);
        let skipped: Vec<_> = rest.iter().filter(|word| **word != "--skip").collect();
        assert_eq!(skipped, crowds.iter().collect::<Vec<_>>());
        assert_eq!(rest.len(), 2 * crowds.len());
    }

    #[test]
    fn what_is_heavier_than_the_room_gets_in_alone() {
        let room = Room::new();
        let place = room.enter(CAPACITY * 2);
        drop(place);
        let _one = room.enter(1);
    }
}
