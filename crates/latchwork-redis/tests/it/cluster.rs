//! A Cluster whose slots move and whose nodes die.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::failover::{Failures, LONG, Load, Test, locks, runtime};
use latchwork::LockManager;
use latchwork_services::{ClusterOptions, RedisCluster, RedisOptions, Value};
use latchwork_store::ErrorKind;
use latchwork_store::testing::stalls;

/// How long a key may be without a grant when its master is lost: 1.5 s until the others take it
/// for dead, the vote, and a request or two that nobody answers.
const BOUND: Duration = Duration::from_secs(25);

/// A Cluster that goes on with the slots that have a master.
fn partial() -> ClusterOptions {
    let redis = RedisOptions::new().config("cluster-require-full-coverage no");
    ClusterOptions { redis, ..ClusterOptions::default() }
}

fn managers(runtime: &tokio::runtime::Runtime, url: &str) -> Vec<LockManager> {
    (0..3).map(|_| runtime.block_on(locks(url)).ttl(Duration::from_secs(20))).collect()
}

/// Names of locks, one on each master.
fn one_on_each(cluster: &RedisCluster) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let mut names = vec![String::new(); 3];
    for n in 0.. {
        let name = format!("lock {n}");
        let node = cluster.node_of_slot(cluster.slot_of(&name)?)?;
        names[node] = name;
        if names.iter().all(|name| !name.is_empty()) {
            break;
        }
    }
    Ok(names)
}

#[test]
fn a_slot_moves_under_load() -> Test {
    let cluster = RedisCluster::start(&ClusterOptions::default())?;
    let runtime = runtime();
    let slot = cluster.slot_of("k")?;
    let all = managers(&runtime, &cluster.url());
    // Held through everything; with the keys of its slot here and there its renewals go on.
    let failures = Arc::new(Failures::default());
    let short = all[0].clone().ttl(Duration::from_millis(2_400)).observer(failures.clone());
    let held = runtime.block_on(short.mutex("{k}held").acquire())?;
    let load = Load::start(&runtime, &all, &["k", "x{k}", "elsewhere"]);
    load.await_grants(&["k", "x{k}", "elsewhere"], 20);
    let from = cluster.node_of_slot(slot)?;
    for to in [(from + 1) % 3, (from + 2) % 3] {
        let migration = cluster.begin_migration(slot, to)?;
        std::thread::sleep(Duration::from_millis(300));
        cluster.finish_migration(migration)?;
        load.await_grants(&["k", "x{k}", "elsewhere"], 20);
    }
    let outcome = load.end(&runtime);
    assert!(outcome.errors.is_empty(), "{:?}", outcome.errors);
    assert_eq!(outcome.overlaps, 0);
    outcome.assert_tokens_rise();
    // Longer than its ttl, first with all of its keys at the old master, then without.
    let migration = cluster.begin_migration(slot, from)?;
    std::thread::sleep(Duration::from_millis(2_700));
    cluster.move_keys(migration, &["{k}held"])?;
    std::thread::sleep(Duration::from_millis(2_700));
    assert!(held.ensure_held().is_ok(), "{:?}", failures.1);
    cluster.finish_migration(migration)?;
    runtime.block_on(held.release())?;
    for word in ["MOVED", "ASK", "TRYAGAIN"] {
        let field = format!("errorstat_{word}");
        let said = cluster.nodes().iter().any(|node| node.info(&field).is_ok());
        assert!(said, "no node has said {word}");
    }
    Ok(())
}

#[test]
fn waiters_follow_a_slot_that_moves() -> Test {
    let cluster = RedisCluster::start(&ClusterOptions::default())?;
    let runtime = runtime();
    let (a, b) = (runtime.block_on(locks(&cluster.url())), runtime.block_on(locks(&cluster.url())));
    let (a, b) = (a.namespace("{n}s"), b.namespace("{n}s"));
    let slot = cluster.slot_of("{n}")?;
    let guard = runtime.block_on(a.mutex("k").acquire())?;
    let mutex = b.mutex("k");
    let waiter = runtime.spawn(async move { mutex.acquire_within(LONG).await });
    wait_for_waiters(&runtime, &a, "k", 1);
    let from = cluster.node_of_slot(slot)?;
    let migration = cluster.begin_migration(slot, (from + 1) % 3)?;
    cluster.finish_migration(migration)?;
    // The old master has told the waiter, and it listens at the new one, before it must look.
    let new = &cluster.nodes()[(from + 1) % 3];
    let start = Instant::now();
    while new.command(&["PUBSUB", "SHARDCHANNELS"])?.list().is_empty() {
        assert!(start.elapsed() < LONG, "nobody listens at the new master");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(50)); // its next try has told the store
    let released = Instant::now();
    runtime.block_on(guard.release())?;
    let guard = runtime.block_on(waiter)??;
    stalls::in_time(released, Duration::from_secs(2));
    runtime.block_on(guard.release())?;
    Ok(())
}

/// H322: a master is relieved by its replica, forgotten by all others and made empty: the hold and the waiter of its slot
/// go on, and a client that has it among its addresses connects.
#[test]
fn h322_a_master_that_is_relieved_and_forgotten_costs_no_lock() -> Test {
    let cluster = RedisCluster::start(&ClusterOptions::default())?;
    let runtime = runtime();
    let ttl = Duration::from_secs(6);
    let connected = || runtime.block_on(locks(&cluster.url())).ttl(ttl);
    let (a, b) = (connected(), connected());
    let slot = cluster.slot_of("k")?;
    let old = cluster.node_of_slot(slot)?;
    let replica = cluster.replicas_of(old)?[0];
    let guard = runtime.block_on(a.mutex("k").acquire())?;
    let (token, mutex) = (guard.token(), b.mutex("k"));
    let waiter = runtime.spawn(async move { mutex.acquire_within(LONG).await });
    wait_for_waiters(&runtime, &a, "k", 1);
    cluster.nodes()[replica].command(&["CLUSTER", "FAILOVER"])?.ok()?;
    cluster.wait_for_new_master(slot, old, LONG)?;
    let id = cluster.nodes()[old].command(&["CLUSTER", "MYID"])?.text();
    for (_, node) in cluster.nodes().iter().enumerate().filter(|(n, _)| *n != old) {
        node.command(&["CLUSTER", "FORGET", &id])?.ok()?;
    }
    cluster.nodes()[old].command(&["CLUSTER", "RESET", "HARD"])?.ok()?;
    std::thread::sleep(ttl + Duration::from_secs(1));
    guard.ensure_held()?;
    let new = connected();
    runtime.block_on(runtime.block_on(new.mutex("another").acquire())?.release())?;
    let released = Instant::now();
    runtime.block_on(guard.release())?;
    let guard = runtime.block_on(waiter)??;
    stalls::in_time(released, Duration::from_secs(2));
    assert!(guard.token() > token);
    runtime.block_on(guard.release())?;
    Ok(())
}

fn wait_for_waiters(
    runtime: &tokio::runtime::Runtime,
    locks: &LockManager,
    name: &str,
    count: usize,
) {
    let start = Instant::now();
    while runtime.block_on(locks.inspect(name)).unwrap().waiters.len() < count {
        assert!(start.elapsed() < LONG, "nobody waits");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_killed_master_costs_only_its_own_locks() -> Test {
    let mut cluster = RedisCluster::start(&partial())?;
    let runtime = runtime();
    let names = one_on_each(&cluster)?;
    let keys: Vec<&str> = names.iter().map(String::as_str).collect();
    let load = Load::start(&runtime, &managers(&runtime, &cluster.url()), &keys);
    load.await_grants(&keys, 20);
    let slot = cluster.slot_of(keys[0])?;
    cluster.node_mut(0).kill();
    let took = load.await_grants(&keys[1..], 20);
    assert!(
        took < stalls::widened(Duration::from_secs(5), took),
        "{took:?} for 20 grants on healthy masters"
    );
    cluster.wait_for_new_master(slot, 0, LONG)?;
    load.await_grants(&keys, 20);
    let outcome = load.end(&runtime);
    assert!(outcome.waiters_errors().is_empty(), "{:?}", outcome.waiters_errors());
    outcome.assert_tokens_rise();
    assert!(outcome.longest_gap(keys[0]) < BOUND, "{:?}", outcome.longest_gap(keys[0]));
    for key in &keys[1..] {
        assert!(
            outcome.longest_gap(key) < Duration::from_secs(3),
            "{:?}",
            outcome.longest_gap(key)
        );
    }
    Ok(())
}

#[test]
fn a_stopped_master_costs_no_other_lock_its_renewal() -> Test {
    let mut cluster = RedisCluster::start(&partial())?;
    let runtime = runtime();
    let names = one_on_each(&cluster)?;
    let locks = runtime.block_on(locks(&cluster.url())).ttl(Duration::from_secs(2));
    let mut held = Vec::new();
    for name in &names {
        held.push(runtime.block_on(locks.mutex(name).acquire())?);
    }
    // A waiter gives up when all has failed for a ttl; the others take longer to agree on a busy machine.
    let waiting = locks.clone().ttl(LONG).mutex(format!("{{{}}}2", names[0]));
    cluster.node_mut(0).stop()?;
    let stopped = Instant::now();
    let waiter = runtime.spawn(async move { waiting.acquire_within(LONG).await });
    while stopped.elapsed() < Duration::from_secs(5) {
        for guard in &held[1..] {
            assert!(guard.ensure_held().is_ok(), "{:?} after the stop", stopped.elapsed());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let guard = runtime.block_on(waiter)??;
    assert!(stopped.elapsed() < BOUND, "{:?}", stopped.elapsed());
    runtime.block_on(guard.release())?;
    for guard in held.drain(1..) {
        runtime.block_on(guard.release())?;
    }
    // It comes back, hears that it has been replaced, and sends clients on.
    cluster.node_mut(0).cont()?;
    cluster.wait_ok(LONG)?;
    runtime
        .block_on(async { locks.mutex(&names[0]).acquire_within(LONG).await?.release().await })?;
    Ok(())
}

#[test]
fn a_cluster_refusal_has_a_kind_and_is_retried() -> Test {
    let cluster = RedisCluster::start(&ClusterOptions::default())?;
    let runtime = runtime();
    let locks = runtime.block_on(locks(&cluster.url()));
    runtime.block_on(async { locks.mutex("k").acquire().await?.release().await })?;
    let slot = cluster.slot_of("k")?.to_string();
    for node in cluster.nodes() {
        node.command(&["CLUSTER", "DELSLOTS", &slot])?;
    }
    let error = runtime.block_on(locks.mutex("k").try_acquire()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(!error.may_have_applied(), "{error}");
    assert!(error.next_step().is_some_and(|hint| hint.contains("CLUSTER INFO")), "{error}");
    let mutex = locks.mutex("k");
    let waiter = runtime.spawn(async move { mutex.acquire_within(LONG).await });
    // A node that had not yet deleted it when another one spoke to it may have told that one again.
    if let Value::Error(said) = cluster.nodes()[0].command(&["CLUSTER", "ADDSLOTS", &slot])? {
        assert!(said.contains("already busy"), "{said}");
    }
    let guard = runtime.block_on(waiter)??;
    runtime.block_on(guard.release())?;
    Ok(())
}

#[test]
fn commands_are_as_few_as_on_one_server() -> Test {
    let cluster = RedisCluster::start(&ClusterOptions { proxies: true, ..Default::default() })?;
    let runtime = runtime();
    let failures = Arc::new(Failures::default());
    let all: Vec<LockManager> = (0..2)
        .map(|_| runtime.block_on(locks(&cluster.url())).observer(failures.clone()))
        .collect();
    let proxies: Vec<_> = cluster.nodes().iter().filter_map(|node| node.proxy()).collect();
    let reset = || proxies.iter().for_each(|proxy| drop(proxy.reset_counts()));
    let total = || proxies.iter().map(|proxy| proxy.counts().total()).sum::<u64>();
    let mutex = all[0].mutex("k");
    runtime.block_on(async { mutex.acquire().await?.release().await })?;
    runtime.block_on(async { mutex.acquire().await?.release().await })?;
    reset();
    for n in 1..=5 {
        let guard = runtime.block_on(mutex.acquire())?;
        assert_eq!(total(), 2 * n - 1, "one command for a free acquire");
        runtime.block_on(guard.release())?;
        assert_eq!(total(), 2 * n, "one command for a release");
    }
    // Two managers that pass the lock to each other: the releaser grants it.
    let load = Load::start(&runtime, &all, &["contended"]);
    load.await_grants(&["contended"], 50);
    reset();
    let before = Instant::now();
    load.await_grants(&["contended"], 100);
    let (commands, took) = (total(), before.elapsed());
    let outcome = load.end(&runtime);
    let cycles = outcome.seen.iter().filter(|s| s.at >= before && s.at <= before + took).count();
    let each = commands as f64 / cycles as f64;
    assert!(each < 2.5, "{commands} commands for {cycles} contended cycles");
    assert_eq!(outcome.overlaps, 0);
    assert_eq!(failures.0.load(Ordering::SeqCst), 0, "{:?}", failures.1);
    // Waiters for keys of different slots are all reached.
    let names = one_on_each(&cluster)?;
    let keys: Vec<&str> = names.iter().map(String::as_str).collect();
    let load = Load::start(&runtime, &all, &keys);
    load.await_grants(&keys, 50);
    let outcome = load.end(&runtime);
    assert!(outcome.errors.is_empty() && outcome.overlaps == 0, "{:?}", outcome.errors);
    Ok(())
}
