//! What locks cost in commands and round trips, counted between client and server.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::bare::Bare;
use crate::common::*;
use latchwork::HoldState;
use latchwork_services::Counts;
use latchwork_store::*;

fn cost(counts: &Counts) -> (u64, u64) {
    (counts.total(), counts.round_trips)
}

#[test]
fn a_free_acquire_is_one_command_and_so_is_its_release() {
    run(async {
        let world = World::new();
        let client = Client::warm(&world.proxy.url(), 30 * SEC).await;
        for _ in 0..20 {
            world.proxy.reset_counts();
            let guard = client.mutex("k").acquire().await.unwrap();
            assert_eq!(cost(&world.proxy.reset_counts()), (1, 1), "acquire");
            guard.release().await.unwrap();
            assert_eq!(cost(&world.proxy.reset_counts()), (1, 1), "release");
        }
        let guard = client.mutex("k").try_acquire().await.unwrap().unwrap();
        assert_eq!(cost(&world.proxy.reset_counts()), (1, 1), "try");
        drop(guard);
        world.empties(SEC).await;
        assert_eq!(cost(&world.proxy.reset_counts()), (1, 1), "drop");
    });
}

#[test]
fn a_try_at_a_held_key_is_one_command() {
    run(async {
        let world = World::new();
        let holder = Client::warm(&world.proxy.url(), 30 * SEC).await;
        let other = Client::warm(&world.proxy.url(), 30 * SEC).await;
        let _guard = holder.acquire("k").await;
        world.proxy.reset_counts();
        for tries in 1..=5 {
            assert!(other.mutex("k").try_acquire().await.unwrap().is_none());
            assert_eq!(cost(&world.proxy.counts()), (tries, tries));
        }
    });
}

/// Clients that take one key in turns, each again as soon as it has given it back.
struct Contest {
    world: Arc<World>,
    clients: Vec<Arc<Client>>,
    cycles: Arc<AtomicU64>,
    inside: Arc<AtomicU64>,
}

#[derive(Clone, Copy)]
enum Hold {
    /// Not at all: with many others in line some always wait.
    Short,
    /// Until all others wait. A client that came to a free key would not count as contended.
    UntilAllWait,
    For(Duration),
}

impl Contest {
    const KEY: &str = "k";

    async fn new(waiting: usize) -> Self {
        let world = World::new();
        let mut clients = Vec::new();
        for _ in 0..=waiting {
            clients.push(Arc::new(Client::warm(&world.proxy.url(), 30 * SEC).await));
        }
        Self { world: Arc::new(world), clients, cycles: Arc::default(), inside: Arc::default() }
    }

    fn looks(&self) -> u64 {
        self.clients.iter().map(|client| client.story.waiting()).sum()
    }

    fn renewals(&self) -> u64 {
        self.clients.iter().map(|client| client.story.renewed()).sum()
    }

    /// Everybody but the holder stands in line. From such a moment to another, only whole cycles
    /// are counted.
    async fn all_wait(&self) {
        let all = || {
            let waiting = self.clients.iter().filter(|client| client.story.is_waiting());
            waiting.count() as i64 == self.others()
        };
        until("all others wait", 20 * SEC, all).await;
        self.world.line_is(Self::KEY, self.others()).await;
    }

    fn others(&self) -> i64 {
        self.clients.len() as i64 - 1
    }

    /// Lets them take turns `rounds` times and counts between two moments at which all others
    /// wait; the commands, and the cycles between.
    async fn count(&self, rounds: u64, hold: Hold) -> Cost {
        // Cycles before, until everybody has been admitted by a push.
        let warm = self.clients.len() as u64;
        let (start, end) = (warm, warm + rounds);
        let (reached, mut reports) = tokio::sync::mpsc::unbounded_channel();
        let go = Arc::new(tokio::sync::Semaphore::new(0));
        let mut tasks = Vec::new();
        for client in &self.clients {
            let (client, reached, go) = (client.clone(), reached.clone(), go.clone());
            let (cycles, inside) = (self.cycles.clone(), self.inside.clone());
            let (world, others) = (self.world.clone(), self.others());
            tasks.push(tokio::spawn(async move {
                loop {
                    let guard = client.acquire(Self::KEY).await;
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                    let cycle = cycles.fetch_add(1, Ordering::SeqCst);
                    match hold {
                        Hold::Short => {}
                        Hold::UntilAllWait => world.line_is(Self::KEY, others).await,
                        Hold::For(length) => pause(length).await,
                    }
                    if cycle == start || cycle == end {
                        reached.send(()).unwrap();
                        go.acquire().await.unwrap().forget();
                    }
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
            }));
        }
        reports.recv().await.unwrap();
        self.all_wait().await;
        let before = (self.looks(), self.renewals());
        let began = Instant::now();
        self.world.proxy.reset_counts();
        go.add_permits(1);
        reports.recv().await.unwrap();
        self.all_wait().await;
        let counts = self.world.proxy.counts();
        let cost = Cost {
            commands: counts.total(),
            looks: self.looks() - before.0,
            renewals: self.renewals() - before.1,
            took: began.elapsed(),
        };
        for task in tasks {
            task.abort();
        }
        cost
    }
}

#[derive(Debug)]
struct Cost {
    commands: u64,
    /// Blocked tries: one that takes a place for each cycle; what is more keeps a place.
    looks: u64,
    renewals: u64,
    took: Duration,
}

async fn two_commands_a_cycle(waiting: usize, rounds: u64, hold: Hold) {
    let contest = Contest::new(waiting).await;
    let cost = contest.count(rounds, hold).await;
    let keep_alives = cost.looks.saturating_sub(rounds);
    assert_eq!(cost.commands, 2 * rounds + keep_alives + cost.renewals, "{cost:?}");
    // None is due earlier than after the probation of the holder that the waiter has met.
    let most = waiting as u64 * (cost.took.as_secs() / PROBATION.as_secs());
    assert!(keep_alives <= most, "{cost:?}");
    // Nobody holds for long here: only a machine that stood still lets a renewal come first.
    assert!(cost.renewals * 3 <= cost.took.as_secs() * 2, "{cost:?}");
}

#[test]
fn a_contended_cycle_is_two_commands_with_1_waiting() {
    run(two_commands_a_cycle(1, 200, Hold::UntilAllWait));
}

#[test]
fn a_contended_cycle_is_two_commands_with_64_waiting() {
    run(two_commands_a_cycle(64, 600, Hold::Short));
}

#[test]
fn a_long_contended_hold_costs_three_commands() {
    run(async {
        let contest = Contest::new(1).await;
        let rounds = 1;
        let cost = contest.count(rounds, Hold::For(PROBATION / 3 + 500 * MS)).await;
        let keep_alives = cost.looks.saturating_sub(rounds);
        assert_eq!(cost.renewals, rounds, "{cost:?}");
        assert_eq!(cost.commands, 3 * rounds + keep_alives, "{cost:?}");
        assert!(keep_alives <= cost.took.as_secs() / PROBATION.as_secs(), "{cost:?}");
    });
}

#[test]
fn a_waiter_costs_nothing_but_its_keep_alives() {
    run(async {
        let world = World::new();
        let holder = Client::warm(&world.proxy.url(), 60 * SEC).await;
        let guard = holder.acquire("k").await;
        let (calm, brisk) = (
            Client::warm(&world.proxy.url(), 30 * SEC).await,
            Client::warm(&world.proxy.url(), 3 * SEC).await,
        );
        let first = waiter(&calm, "k");
        world.line_is("k", 1).await;
        // The channel is subscribed to, and the place tells so.
        until("the channel is known", SEC, || calm.story.waiting() == 2).await;
        world.proxy.reset_counts();
        pause(1_500 * MS).await;
        assert_eq!(world.proxy.counts().total(), 0, "{:?}", world.proxy.counts());
        // Another that keeps its place each third of its ttl.
        let second = waiter(&brisk, "k");
        until("the channel is known", SEC, || brisk.story.waiting() == 2).await;
        world.proxy.reset_counts();
        pause(2_500 * MS).await;
        let counts = world.proxy.counts();
        assert!((2..=3).contains(&counts["EVALSHA"]), "{counts:?}");
        assert_eq!(counts.total(), counts["EVALSHA"]);
        drop(guard);
        drop(first.await.unwrap());
        drop(second.await.unwrap());
    });
}

#[test]
fn a_script_flush_costs_one_trip_per_script() {
    run(async {
        let world = World::new();
        let client = Client::warm(&world.proxy.url(), 30 * SEC).await;
        let other = Client::warm(&world.proxy.url(), 30 * SEC).await;
        world.ask(&["SCRIPT", "FLUSH"]);
        world.proxy.reset_counts();
        let guard = client.acquire("k").await;
        assert_eq!(cost(&world.proxy.reset_counts()), (2, 2), "the first try");
        guard.release().await.unwrap();
        assert_eq!(cost(&world.proxy.reset_counts()), (2, 2), "the first release");
        // The server knows them again, whoever asks.
        other.acquire("k").await.release().await.unwrap();
        client.acquire("k").await.release().await.unwrap();
        assert_eq!(cost(&world.proxy.reset_counts()), (4, 4));
    });
}

#[test]
fn flushing_the_scripts_under_load_costs_no_lock_and_no_error() {
    run(async {
        let contest = Contest::new(4).await;
        let flushes = 20;
        let counted = contest.count(400, Hold::Short);
        let flushing = async {
            for _ in 0..flushes {
                contest.world.ask(&["SCRIPT", "FLUSH"]);
                pause(5 * MS).await;
            }
        };
        let (cost, ()) = tokio::join!(counted, flushing);
        let keep_alives = cost.looks.saturating_sub(400);
        // Two scripts are in use, and clients may find out side by side.
        let most = 2 * 400 + keep_alives + cost.renewals + 2 * 5 * flushes;
        assert!(cost.commands <= most, "{cost:?}");
        for client in &contest.clients {
            assert!(client.story.failures.lock().unwrap().is_empty());
            assert!(client.story.lost().is_empty());
        }
    });
}

/// 10,000 locks at a ttl of 6 s for the time of one ttl: each is renewed three times in it (once at the least, if the
/// machine is busy), as it would be in 30 s at a ttl of 30 s. So what is counted here in 6 s is what comes in 30 s then.
#[test]
fn ten_thousand_locks_need_fifty_commands_a_second() {
    run(async {
        const LOCKS: usize = 10_000;
        let ttl = 6 * SEC;
        let world = World::new();
        let client = Arc::new(Client::alone(&world.proxy.url(), ttl).await);
        let mut tasks = Vec::new();
        for lane in 0..100 {
            let client = client.clone();
            tasks.push(tokio::spawn(async move {
                let mut guards = Vec::new();
                for n in 0..LOCKS / 100 {
                    let mutex = client.mutex(&format!("k{lane}/{n}"));
                    guards.push(mutex.acquire().await.unwrap());
                }
                guards
            }));
        }
        let mut guards = Vec::new();
        for task in tasks {
            guards.extend(task.await.unwrap());
        }
        world.proxy.reset_counts();
        let renewed = client.story.renewed();
        pause(ttl).await;
        let counts = world.proxy.counts();
        let renewed = client.story.renewed() - renewed;
        assert!(counts.total() <= 50 * 30, "{counts:?}");
        let failures = client.story.failures.lock().unwrap().first().cloned();
        assert!(renewed as usize >= LOCKS, "{renewed} renewals, {failures:?}, {counts:?}");
        assert!(guards.iter().all(|guard| guard.state() == HoldState::Held));
        assert!(client.story.lost().is_empty());
        // Their releases are another matter; the server goes first.
        drop(world);
        drop(guards);
    });
}

/// Of those who only left a mark, a release calls the oldest one, and tells three behind it to look
/// soon in case it does not come. They are not told again at the next release.
#[test]
fn a_release_wakes_one_waiter_and_warns_the_next() {
    run(async {
        let world = World::new();
        let holder = Bare::connect(&world.server.url()).await.unwrap();
        let held = holder.claim("k", Mode::Exclusive);
        holder.granted(&held).await.unwrap();
        let mut waiters = Vec::new();
        for _ in 0..8 {
            let waiter = Bare::connect(&world.proxy.url()).await.unwrap();
            let claim = waiter.claim("k", Mode::Exclusive).with(|it| it.order = Order::Barging);
            // The first wait subscribes; the second try says where to reach it.
            let blocked = waiter.blocked(&claim).await.unwrap();
            assert_eq!(waiter.backend.wait(&claim, &blocked).await.unwrap(), Wake::Look);
            waiter.blocked(&claim).await.unwrap();
            waiters.push((waiter, claim));
        }
        world.proxy.reset_counts();
        holder.released(&held).await.unwrap();
        within("it is called", SEC, world.proxy.counts_reach(|counts| counts.pushes >= 4)).await;
        pause(100 * MS).await; // for one too many
        let counts = world.proxy.counts();
        assert_eq!(counts.pushes, 4, "{counts:?}");
        let (first, claim) = &waiters[0];
        first.granted(claim).await.unwrap();
        world.proxy.reset_counts();
        first.released(claim).await.unwrap();
        within("the next is called", SEC, world.proxy.counts_reach(|counts| counts.pushes >= 2))
            .await;
        pause(100 * MS).await; // for one too many
        let counts = world.proxy.counts();
        assert_eq!(counts.pushes, 2, "one is called, and one comes near: {counts:?}");
    });
}
