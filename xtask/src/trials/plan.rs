//! How many threads a test binary gets, and how much of the machine it takes.

use std::collections::VecDeque;
use std::num::NonZero;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::binaries::Binary;

/// So many binaries run at a time at the most, for each processor.
const SIDE_BY_SIDE: usize = 3;

/// So much weight runs on two processors. A weight of 2 takes about one, and has a dozen threads that compute at once at
/// the most, with their servers: four such binaries at a time ended no sooner, and tests that wait for a real clock must
/// get a processor when they wake up.
const TWO_PROCESSORS: u32 = 4;
/// And so much when nothing is compiled or tested beside them any more, which takes about one processor.
const ALONE: u32 = 5;

/// While so many tasks for each processor want to run, on average, no other binary begins: this machine is slower than
/// those that the weights were found on, or something else uses it too.
const CROWDED: f64 = 3.0;
/// How much the newest count of tasks says of the average.
const NEWEST: f64 = 0.05;

/// What a binary needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Needs {
    pub(crate) threads: u32,
    pub(crate) weight: u32,
    /// What takes longest begins first, and of that what leaves most of a processor to others.
    rank: u32,
}

/// What is not named here computes for a moment.
const SHORT: Needs = Needs { threads: 2, weight: 1, rank: 0 };

const PLANS: &[(&str, &str, Needs)] = &[
    // Servers that start slowly, elections, ttls.
    ("latchwork-zookeeper", "it", Needs { threads: 6, weight: 2, rank: 10 }),
    ("latchwork-etcd", "it", Needs { threads: 6, weight: 2, rank: 11 }),
    ("latchwork-redis", "it", Needs { threads: 6, weight: 2, rank: 9 }),
    ("latchwork-redis", "contract", Needs { threads: 6, weight: 2, rank: 9 }),
    // Workers that are as busy as they can.
    ("latchwork-nemesis", "it", Needs { threads: 2, weight: 3, rank: 14 }),
    ("latchwork-cli", "it", Needs { threads: 6, weight: 2, rank: 10 }),
    ("latchwork-demo", "it", Needs { threads: 4, weight: 1, rank: 6 }),
    ("latchwork-recipes", "it", Needs { threads: 4, weight: 1, rank: 4 }),
    ("latchwork", "it", Needs { threads: 6, weight: 2, rank: 8 }),
    ("latchwork-file", "it", Needs { threads: 6, weight: 2, rank: 5 }),
    ("latchwork-zookeeper", "contract", Needs { threads: 6, weight: 2, rank: 5 }),
    ("latchwork-postgres", "it", Needs { threads: 4, weight: 2, rank: 12 }),
    ("latchwork-postgres", "contract", Needs { threads: 4, weight: 2, rank: 12 }),
    // Minutes of requests that are counted. A start of its API server takes both processors for seconds.
    ("latchwork-kubernetes", "it", Needs { threads: 4, weight: 2, rank: 11 }),
    ("latchwork-kubernetes", "contract", Needs { threads: 4, weight: 2, rank: 6 }),
    ("latchwork-etcd", "contract", Needs { threads: 6, weight: 2, rank: 6 }),
    ("latchwork-file", "contract", Needs { threads: 8, weight: 1, rank: 3 }),
    ("latchwork-services", "it", Needs { threads: 4, weight: 2, rank: 3 }),
    // These compute.
    ("latchwork-model", "it", Needs { threads: 2, weight: 2, rank: 4 }),
    ("latchwork-quorum", "lib", Needs { threads: 2, weight: 2, rank: 3 }),
];

/// Tests that hold or wait for thousands of locks, or set up as much: each takes a processor for moments, and what is
/// answered late then fails. Those of a package run one at a time. Those that mostly wait begin early: what computes fills
/// the processors until the end.
const CROWDS: &[(Named, Needs)] = &[
    (
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
        Needs { threads: 1, weight: 1, rank: 13 },
    ),
    // No crowd, but alone, because its API server takes both processors when it starts.
    (("latchwork-nemesis", "it", &["kubernetes::"]), Needs { threads: 1, weight: 2, rank: 8 }),
    // A hundred thousand cycles, one after the other, which take longer than all others of their package; and what
    // measures a part of a call.
    (
        ("latchwork-postgres", "it", &["h135_a_hundred_thousand_cycles", "h191_a_first_call"]),
        Needs { threads: 1, weight: 1, rank: 13 },
    ),
    (
        ("latchwork-file", "it", &["h100_", "verbs::hostile_names"]),
        Needs { threads: 1, weight: 1, rank: 11 },
    ),
    (
        ("latchwork-zookeeper", "it", &["h105_two_hundred_ttls", "storm::", "h70_a_late_create"]),
        Needs { threads: 1, weight: 2, rank: 12 },
    ),
    (
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
                "a_stopped_master_costs_no_other_lock",
                "h55_twenty_clients",
                "h58_a_long_hold",
            ],
        ),
        Needs { threads: 1, weight: 1, rank: 12 },
    ),
    // Browsers: each is several processes that draw. And clients of other languages, whose runtimes start slowly.
    (
        ("latchwork-cli", "it", &["serve::page::", "serve::clients::", "top::ten_thousand_locks"]),
        Needs { threads: 2, weight: 2, rank: 9 },
    ),
    (
        ("latchwork", "it", &["many_waiters::", "h97_a_busy_child"]),
        Needs { threads: 1, weight: 2, rank: 8 },
    ),
];

/// Tests whose nodes have a few hundred milliseconds to answer, and sync each write: nothing runs beside them.
const TIGHT: &[(Named, Needs)] = &[
    (("latchwork-redis", "it", &["redlock::"]), TIGHTLY),
    (("latchwork-redis", "contract", &["redlock::"]), TIGHTLY),
];
const TIGHTLY: Needs = Needs { threads: 4, weight: ALONE, rank: 11 };

/// Tests that take minutes of a processor and show what a shorter one shows for the same store, or under more faults:
/// `cargo xtask test --all` runs them too.
const LONG: &[Named] = &[
    (
        "latchwork-nemesis",
        "it",
        &[
            "etcd::a_deleted_key",
            "etcd::members_of_etcd",
            "etcd::the_network_of_etcd",
            "eye::the_eye_finds_every_lie",
            "file::a_silent_store",
            "file::calm",
            "file::the_next_renewal",
            "file::workers_are_stopped",
            "foreign::curator",
            "foreign::go_concurrency",
            "foreign::kazoo",
            "foreign::redsync",
            "http::clients_of_the_service_are_killed",
            "http::connections_to_the_service",
            "http::h436_clients_of_two_instances",
            "http::locks_of_the_service",
            "http::the_fence_stops",
            "http::the_store_of_the_service",
            "kubernetes::a_killed_worker",
            "postgres::a_pooler_that_fails",
            "postgres::an_unguarded_promotion",
            "postgres::the_network_of_postgres",
            "redis::a_cluster_split",
            "redis::a_failover_keeps",
            "redis::a_failover_may",
            "redis::a_guarded_cluster_split",
            "redis::a_guarded_split",
            "redis::a_node_of_a_cluster",
            "redis::a_restart_with_data",
            "redis::a_split_makes",
            "redis::an_empty_server",
            "redis::calm",
            "redis::guarded_voters",
            "redis::the_next_renewal",
            "redis::unguarded_voters",
            "zookeeper::members_of",
            "zookeeper::the_network_of",
        ],
    ),
    ("latchwork-postgres", "it", &["h135_a_hundred_thousand_cycles"]),
    // The first measures how smoothly a browser draws, which takes a quiet machine; the other one's program is installed
    // first, with forty packages.
    (
        "latchwork-cli",
        "it",
        &[
            "serve::page::ten_thousand_locks_scroll",
            "serve::described::no_request_that_schemathesis",
        ],
    ),
    // They need one version more, which is built.
    ("latchwork-etcd", "it", &["h323_a_rolling_upgrade"]),
    ("latchwork-kubernetes", "it", &["h323_an_upgrade"]),
];

/// Tests of a package's program, by parts of their names.
type Named = (&'static str, &'static str, &'static [&'static str]);

/// One run of a binary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) binary: Binary,
    pub(crate) part: Part,
    /// Tests that are left out, by parts of their names.
    left_out: &'static [&'static str],
    /// The long tests run too.
    with_long: bool,
}

/// Which of its tests are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    All,
    /// Without those of the other parts.
    Without(&'static [&'static str], &'static [&'static str]),
    Crowds(&'static [&'static str], Needs),
    /// Those of the second names, without those of the crowd.
    Tight(&'static [&'static str], &'static [&'static str], Needs),
}

impl Run {
    pub(crate) fn name(&self) -> String {
        match self.part {
            Part::All | Part::Without(..) => self.binary.name(),
            Part::Crowds(..) => format!("{} crowds", self.binary.name()),
            Part::Tight(..) => format!("{} tight", self.binary.name()),
        }
    }

    /// The arguments that choose its tests.
    pub(crate) fn arguments(&self) -> Vec<&'static str> {
        let mut arguments = match self.part {
            Part::All => Vec::new(),
            Part::Without(crowds, tight) => {
                crowds.iter().chain(tight).flat_map(|name| ["--skip", name]).collect()
            }
            Part::Crowds(names, _) => names.to_vec(),
            Part::Tight(crowds, names, _) => {
                let skipped = crowds.iter().flat_map(|name| ["--skip", name]);
                names.iter().copied().chain(skipped).collect()
            }
        };
        arguments.extend(self.left_out.iter().flat_map(|name| ["--skip", name]));
        arguments
    }

    /// With the long tests more random histories are played where each takes seconds.
    pub(crate) fn environment(&self) -> Option<(&'static str, &'static str)> {
        let is_slow = ["latchwork-redis contract", "latchwork-postgres contract"]
            .contains(&&*self.binary.name());
        (self.with_long && is_slow).then_some(("LATCHWORK_HISTORIES", "12"))
    }

    pub(crate) fn needs(&self) -> Needs {
        match self.part {
            Part::All | Part::Without(..) => of(&self.binary),
            Part::Crowds(_, needs) | Part::Tight(.., needs) => needs,
        }
    }
}

/// All runs of the binaries, the longest first. No test is in two of them.
pub(crate) fn runs(binaries: Vec<Binary>, with_long: bool) -> VecDeque<Run> {
    let mut runs = Vec::new();
    let named = |list: &'static [(Named, Needs)], binary: &Binary| {
        let is_it = |((package, target, _), _): &&(Named, Needs)| {
            *package == binary.package && *target == binary.target
        };
        list.iter().find(is_it).map_or((&[][..], SHORT), |((_, _, names), needs)| (*names, *needs))
    };
    for binary in binaries {
        let long = LONG.iter().filter(|_| !with_long);
        let mut long = long
            .filter(|(package, target, _)| *package == binary.package && *target == binary.target);
        let left_out = long.next().map_or(&[][..], |(.., names)| *names);
        let run = |part| Run { binary: binary.clone(), part, left_out, with_long };
        let ((crowd, for_crowd), (tight, for_tight)) =
            (named(CROWDS, &binary), named(TIGHT, &binary));
        if !crowd.is_empty() {
            runs.push(run(Part::Crowds(crowd, for_crowd)));
        }
        if !tight.is_empty() {
            runs.push(run(Part::Tight(crowd, tight, for_tight)));
        }
        let is_whole = crowd.is_empty() && tight.is_empty();
        let part = if is_whole { Part::All } else { Part::Without(crowd, tight) };
        runs.push(run(part));
    }
    runs.sort_by_key(|run| std::cmp::Reverse(run.needs().rank));
    runs.into()
}

fn of(binary: &Binary) -> Needs {
    let plan = PLANS
        .iter()
        .find(|(package, target, _)| *package == binary.package && *target == binary.target);
    plan.map_or(SHORT, |(_, _, needs)| *needs)
}

/// What is still to be run, and how much of the machine is taken.
pub(crate) struct Room {
    processors: u32,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    queue: VecDeque<Run>,
    taken: u32,
    /// What runs beside the binaries has ended.
    is_alone: bool,
    /// How many tasks for each processor want to run, on average.
    tasks: f64,
}

impl Room {
    /// That of a machine with so many processors.
    pub(crate) fn of(processors: NonZero<usize>, queue: VecDeque<Run>) -> Self {
        let processors = processors.get().try_into().unwrap_or(u32::MAX);
        let state = Mutex::new(State { queue, taken: 0, is_alone: false, tasks: 0.0 });
        Self { processors, state, changed: Condvar::new() }
    }

    /// Makes more room, because nothing runs beside the binaries any more.
    pub(crate) fn is_alone(&self) {
        self.lock().is_alone = true;
        self.changed.notify_all();
    }

    /// Counts how many tasks want to run on this machine.
    pub(crate) fn count(&self, tasks: u32) {
        let mut state = self.lock();
        state.tasks += (f64::from(tasks) / f64::from(self.processors) - state.tasks) * NEWEST;
        if state.tasks < CROWDED {
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many binaries run at a time at the most.
    pub(crate) fn side_by_side(&self) -> usize {
        SIDE_BY_SIDE * self.processors as usize
    }

    fn capacity(&self, is_alone: bool) -> u32 {
        let two = if is_alone { ALONE } else { TWO_PROCESSORS };
        two.saturating_mul(self.processors).div_ceil(2)
    }

    /// Whether the processors carry so much more. Alone, anything runs.
    fn fits(&self, state: &State, weight: u32) -> bool {
        let has_room = || state.taken + weight <= self.capacity(state.is_alone);
        state.taken == 0 || (state.tasks < CROWDED && has_room())
    }

    /// Waits until there is room for one of those that are left, and takes the first for which there is; none is left
    /// if it returns none. What needs most comes when the others are done.
    pub(crate) fn next(&self) -> Option<Place<'_>> {
        let mut state = self.lock();
        while !state.queue.is_empty() {
            let fits = |run: &Run| self.fits(&state, run.needs().weight);
            if let Some(run) =
                state.queue.iter().position(fits).and_then(|at| state.queue.remove(at))
            {
                state.taken += run.needs().weight;
                return Some(Place { room: self, run });
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }
}

/// A run, and its room, given back when dropped.
pub(crate) struct Place<'a> {
    room: &'a Room,
    pub(crate) run: Run,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let weight = self.run.needs().weight;
        self.room.lock().taken -= weight;
        self.room.changed.notify_all();
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
    fn the_longest_test_group_runs_first() {
        let all = vec![binary("xtask", "xtask"), binary("latchwork-etcd", "it")];
        let order: Vec<_> = runs(all, false).iter().map(Run::name).collect();
        assert_eq!(order, ["latchwork-etcd it crowds", "latchwork-etcd it", "xtask xtask"]);
        assert_eq!(of(&binary("new", "lib")), SHORT);
    }

    #[test]
    fn each_test_is_in_one_run() {
        let runs = runs(vec![binary("latchwork-file", "it")], false);
        let [crowds, rest] = [&runs[0], &runs[1]].map(Run::arguments);
        let skipped: Vec<_> = rest.iter().filter(|word| **word != "--skip").collect();
        assert_eq!(skipped, crowds.iter().collect::<Vec<_>>());
        assert_eq!(rest.len(), 2 * crowds.len());
    }

    #[test]
    fn long_tests_are_left_out_unless_all_are_asked_for() {
        let nemesis = || vec![binary("latchwork-nemesis", "it")];
        let skipped = |runs: VecDeque<Run>| {
            let of = |run: &Run| run.arguments().contains(&"redis::a_split_makes");
            runs.iter().any(of)
        };
        assert!(skipped(runs(nemesis(), false)) && !skipped(runs(nemesis(), true)));
    }

    #[test]
    fn what_fits_is_run_before_what_does_not() {
        let all =
            ["latchwork-zookeeper", "latchwork-nemesis", "xtask"].map(|name| binary(name, "it"));
        let room = Room::of(NonZero::new(2).unwrap(), runs(all.into(), false));
        let name = |place: &Place<'_>| place.run.name();
        let first = room.next().unwrap();
        assert_eq!(name(&first), "latchwork-nemesis it");
        // ZooKeeper, which comes next, does not fit beside it.
        let second = room.next().unwrap();
        assert_eq!(name(&second), "xtask it");
        // With the room of the machine alone, it does.
        drop(second);
        room.is_alone();
        let third = room.next().unwrap();
        assert_eq!(name(&third), "latchwork-zookeeper it crowds");
        drop((first, third));
        // Those of more weight than the machine has run alone.
        while let Some(place) = room.next() {
            assert!(place.run.needs().weight <= 5);
        }
    }

    #[test]
    fn nothing_begins_on_a_crowded_machine() {
        let room = Room::of(NonZero::new(2).unwrap(), VecDeque::new());
        let fits = |taken| {
            let mut state = room.lock();
            state.taken = taken;
            room.fits(&state, 1)
        };
        assert!(fits(1));
        (0..100).for_each(|_| room.count(20));
        assert!(!fits(1) && fits(0));
        (0..100).for_each(|_| room.count(4));
        assert!(fits(1));
    }

    #[test]
    fn a_machine_takes_in_as_much_as_its_processors_carry() {
        for processors in [1, 2, 8] {
            let room = Room::of(NonZero::new(processors).unwrap(), VecDeque::new());
            assert_eq!(room.side_by_side(), 3 * processors);
            for (is_alone, two) in [(false, 4), (true, 5)] {
                let most = room.capacity(is_alone);
                assert_eq!(most, (two * processors as u32).div_ceil(2));
                let fits = |taken, weight| {
                    let queue = VecDeque::new();
                    room.fits(&State { queue, taken, is_alone, tasks: 2.0 }, weight)
                };
                assert!(fits(most - 1, 1) && !fits(most, 1) && fits(0, most + 1));
            }
        }
    }
}
