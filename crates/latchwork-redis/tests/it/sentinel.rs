//! A master behind Sentinels that is killed, stopped, relieved and cut off.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::failover::{Failures, LONG, Load, Test, connect, locks, runtime, soon};
use latchwork::LockManager;
use latchwork::fence::Fence;
use latchwork_redis::RedisConfig;
use latchwork_services::{Direction, Proxy, SentinelOptions, SentinelSet};
use latchwork_store::ErrorKind;

/// How long a fail-over may leave a key without a grant: half a second until the master counts as
/// dead, the vote, and a request or two that nobody answers.
const BOUND: Duration = Duration::from_secs(20);

fn options() -> SentinelOptions {
    SentinelOptions { down_after: Duration::from_millis(500), ..SentinelOptions::default() }
}

fn managers(runtime: &tokio::runtime::Runtime, url: &str) -> Vec<LockManager> {
    (0..3).map(|_| runtime.block_on(locks(url)).ttl(Duration::from_secs(20))).collect()
}

#[test]
fn locks_go_on_when_the_master_is_relieved_or_killed() -> Test {
    let mut set = SentinelSet::start(&options())?;
    let runtime = runtime();
    let load = Load::start(&runtime, &managers(&runtime, &set.url()), &["a", "b"]);
    load.await_grants(&["a", "b"], 20);
    set.failover()?;
    set.wait_for_new_master(0, LONG)?;
    load.await_grants(&["a", "b"], 20);
    set.wait_settled(LONG)?;
    // On a busy machine the Sentinels may have relieved the second meanwhile.
    let killed = set.kill_master()?;
    let third = set.wait_for_new_master(killed, LONG)?;
    load.await_grants(&["a", "b"], 20);
    assert_eq!(set.nodes()[third].info("role")?, "master");
    let outcome = load.end(&runtime);
    assert!(outcome.waiters_errors().is_empty(), "{:?}", outcome.waiters_errors());
    outcome.assert_tokens_rise();
    for key in ["a", "b"] {
        assert!(outcome.longest_gap(key) < BOUND, "{:?}", outcome.longest_gap(key));
    }
    Ok(())
}

#[test]
fn locks_go_on_when_the_master_is_stopped() -> Test {
    let mut set = SentinelSet::start(&options())?;
    let runtime = runtime();
    let load = Load::start(&runtime, &managers(&runtime, &set.url()), &["a", "b"]);
    load.await_grants(&["a", "b"], 20);
    set.node_mut(0).stop()?;
    set.wait_for_new_master(0, LONG)?;
    load.await_grants(&["a", "b"], 20);
    // When it goes on it takes itself for the master, until it is told that it is a replica.
    set.node_mut(0).cont()?;
    set.wait_settled(LONG)?;
    load.await_grants(&["a", "b"], 20);
    let outcome = load.end(&runtime);
    assert!(outcome.waiters_errors().is_empty(), "{:?}", outcome.waiters_errors());
    outcome.assert_tokens_rise();
    assert!(outcome.longest_gap("a") < BOUND, "{:?}", outcome.longest_gap("a"));
    Ok(())
}

#[test]
fn a_failover_is_followed_before_commands_fail() -> Test {
    let mut set = SentinelSet::start(&options())?;
    let runtime = runtime();
    let failures = Arc::new(Failures::default());
    let locks = runtime.block_on(locks(&set.url())).observer(failures.clone());
    let held = runtime.block_on(locks.mutex("held").try_acquire())?.ok_or("it is free")?;
    // One that is stopped tells nothing: another one does.
    set.sentinel_mut(0).stop()?;
    set.failover()?;
    let new = set.wait_for_new_master(0, LONG)?;
    let at = Instant::now();
    // The word of the switch and the new role of the old master come at the same time.
    // It cuts all connections then, also the one that asks.
    while set.nodes()[0].info("role").is_ok_and(|role| role == "master") {
        assert!(at.elapsed() < LONG, "the old master is told its role");
    }
    runtime.block_on(async {
        let guard = locks.mutex("next").try_acquire().await?.ok_or("it is free")?;
        guard.release().await?;
        held.release().await?;
        Ok::<(), Box<dyn std::error::Error>>(())
    })?;
    assert_eq!(failures.0.load(Ordering::SeqCst), 0, "{:?}", failures.1);
    assert!(set.nodes()[0].info("errorstat_READONLY").is_err(), "nothing was sent to the old one");
    assert!(set.nodes()[new].info("cmdstat_evalsha").is_ok());
    Ok(())
}

#[test]
fn an_unannounced_failover_is_noticed() -> Test {
    let mut set = SentinelSet::start(&options())?;
    let runtime = runtime();
    let mut proxies = Vec::new();
    for port in set.sentinel_ports() {
        let proxy = Proxy::redis(port)?;
        proxy.lose_pushes(true);
        proxies.push(proxy);
    }
    // With one of three Sentinels gone the others are enough.
    set.sentinel_mut(2).kill();
    let hosts: Vec<_> = proxies.iter().map(|p| format!("127.0.0.1:{}", p.port())).collect();
    let url = format!("redis+sentinel://{}/{}", hosts.join(","), set.name());
    let locks = runtime.block_on(locks(&url));
    let first = runtime.block_on(locks.mutex("k").try_acquire())?.ok_or("it is free")?;
    let first_token = first.token();
    runtime.block_on(first.release())?;
    set.failover()?;
    set.wait_for_new_master(0, LONG)?;
    set.wait_settled(LONG)?;
    let next = runtime.block_on(locks.mutex("k").try_acquire())?.ok_or("it is free")?;
    assert!(next.token() > first_token);
    Ok(())
}

#[test]
fn old_sentinels_work_and_a_refusal_is_named() -> Test {
    let mut set = SentinelSet::start(&options())?;
    let runtime = runtime();
    let mut proxies = Vec::new();
    for port in set.sentinel_ports() {
        let proxy = Proxy::redis(port)?;
        proxy.refuse("HELLO", "ERR unknown command 'HELLO'");
        proxies.push(proxy);
    }
    let hosts: Vec<_> = proxies.iter().map(|p| format!("127.0.0.1:{}", p.port())).collect();
    let url = format!("redis+sentinel://{}/{}", hosts.join(","), set.name());
    let waiting = runtime.block_on(locks(&url)).ttl(Duration::from_secs(20));
    let load = Load::start(&runtime, &[waiting], &["k"]);
    load.await_grants(&["k"], 20);
    set.kill_master()?;
    set.wait_for_new_master(0, LONG)?;
    load.await_grants(&["k"], 20);
    let outcome = load.end(&runtime);
    assert!(outcome.waiters_errors().is_empty(), "{:?}", outcome.waiters_errors());
    assert!(outcome.longest_gap("k") < BOUND, "{:?}", outcome.longest_gap("k"));
    for proxy in &proxies {
        proxy.refuse("SENTINEL", "NOPERM this user has no permissions to run 'sentinel'");
    }
    let error = runtime.block_on(connect(RedisConfig::parse(&url)?)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.next_step().is_some_and(|hint| hint.contains("sentinel_password")), "{error}");
    for proxy in &proxies {
        proxy.allow("SENTINEL");
    }
    let other = format!("redis+sentinel://{}/nobody", hosts.join(","));
    let error = runtime.block_on(connect(RedisConfig::parse(&other)?)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("\"nobody\""), "{error}");
    Ok(())
}

#[test]
fn a_demoted_master_is_disconnected() -> Test {
    let set = SentinelSet::start(&SentinelOptions { proxies: true, ..options() })?;
    let runtime = runtime();
    let locks = runtime.block_on(locks(&set.url()));
    let proxy = set.nodes()[0].proxy().ok_or("no proxy")?;
    let refused = "READONLY You can't write against a read only replica.";
    proxy.refuse("EVALSHA", refused);
    proxy.reset_counts();
    let mutex = locks.mutex("k");
    let attempt = runtime.spawn(async move { mutex.try_acquire().await });
    proxy.wait_counts(LONG, |counts| counts["EVALSHA"] >= 2 && counts.connections >= 2)?;
    proxy.allow("EVALSHA");
    assert!(runtime.block_on(attempt)??.is_some(), "one try, and no error reached its caller");
    // A server that is a replica for good is named.
    let replica = format!("redis://127.0.0.1:{}", set.nodes()[1].port());
    let locks = runtime.block_on(crate::failover::locks(&replica));
    let error = runtime.block_on(locks.mutex("k2").try_acquire()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("replica") && !error.may_have_applied(), "{error}");
    Ok(())
}

/// A client that is on the master's side of a partition: it goes past the proxies.
fn beside_the_master(set: &SentinelSet) -> RedisConfig {
    let mut config = RedisConfig::parse(&set.url()).unwrap();
    for node in set.nodes() {
        let [announced, own] =
            [node.address_port(), node.port()].map(|port| format!("127.0.0.1:{port}"));
        config = config.detour(&announced, &own).unwrap();
    }
    config
}

fn cut_off(set: &SentinelSet) {
    let proxy = set.nodes()[0].proxy().unwrap();
    proxy.freeze(Direction::ToServer);
    proxy.freeze(Direction::ToClient);
}

#[test]
fn an_unreplicated_lock_is_lost_and_fenced() -> Test {
    let mut set = SentinelSet::start(&SentinelOptions { proxies: true, ..options() })?;
    let runtime = runtime();
    let old_side = runtime.block_on(connect(beside_the_master(&set)))?;
    let new_side = runtime.block_on(locks(&set.url()));
    cut_off(&set);
    let old = runtime.block_on(old_side.mutex("k").try_acquire())?.ok_or("it is free")?;
    set.node_mut(0).kill();
    set.wait_for_new_master(0, LONG)?;
    let new = runtime.block_on(soon(&new_side, "k"));
    // Both are holders by all that they can know.
    assert!(old.ensure_held().is_ok(), "no renewal was due yet");
    assert!(new.ensure_held().is_ok());
    let fence = Fence::new();
    assert!(fence.check_write(old.token()).is_ok());
    assert!(fence.check_write(new.token()).is_ok());
    let refused = fence.check_write(old.token()).unwrap_err();
    assert_eq!((refused.refused, refused.newest), (old.token(), new.token()));
    Ok(())
}

#[test]
fn with_all_replicas_asked_a_failover_forgets_no_lock() -> Test {
    let mut set = SentinelSet::start(&SentinelOptions { proxies: true, ..options() })?;
    let runtime = runtime();
    let ttl = Duration::from_secs(20);
    let old_side = runtime.block_on(connect(beside_the_master(&set).min_replicas(2)))?.ttl(ttl);
    let url = format!("{}?min_replicas=1", set.url());
    let new_side = runtime.block_on(locks(&url)).ttl(ttl);
    // A replica that has just come may still be reading what was there before.
    let held = runtime.block_on(soon(&old_side, "held"));
    cut_off(&set);
    let error = runtime.block_on(old_side.mutex("k").try_acquire()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("0 of 2 replicas"), "{error}");
    assert!(!error.may_have_applied(), "it was taken back");
    assert_eq!(set.nodes()[0].command(&["EXISTS", "k"])?.text(), "0");
    set.node_mut(0).kill();
    set.wait_for_new_master(0, LONG)?;
    let new = runtime.block_on(soon(&new_side, "k"));
    assert!(new.ensure_held().is_ok());
    // What counted before is known to the new master.
    let valid_until = held.valid_until();
    match runtime.block_on(new_side.mutex("held").acquire_within(Duration::from_secs(2))) {
        Err(error) => assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}"),
        Ok(guard) => {
            panic!("a second holder, and the first is valid until {valid_until:?}: {guard:?}")
        }
    }
    assert!(held.ensure_held().is_ok());
    runtime.block_on(held.release())?;
    Ok(())
}
