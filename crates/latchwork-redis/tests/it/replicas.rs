//! Locks that count only when replicas have them.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::time::{Duration, Instant};

use crate::failover::{LONG, Load, Test, locks, runtime};
use latchwork_services::{RedisOptions, RedisServer};
use latchwork_store::ErrorKind;

/// A master and its replica, which has caught up.
fn pair() -> Result<(RedisServer, RedisServer), Box<dyn std::error::Error>> {
    let master = RedisServer::start(&RedisOptions::new())?;
    let replica = RedisServer::start(&RedisOptions::new().replica_of(master.port()))?;
    let start = Instant::now();
    while replica.info("master_link_status")? != "up" {
        assert!(start.elapsed() < LONG, "the replica does not follow");
        std::thread::sleep(Duration::from_millis(10));
    }
    // The master sends what is written only after the replica's first word.
    master.command(&["SET", "probe", "1"])?.ok()?;
    while replica.command(&["EXISTS", "probe"])?.text() != "1" {
        assert!(start.elapsed() < LONG, "the replica gets nothing");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok((master, replica))
}

fn url(master: &RedisServer) -> String {
    format!("{}?min_replicas=1", master.url())
}

#[test]
fn a_confirmed_lock_is_taken_kept_and_handed_over() -> Test {
    let (master, replica) = pair()?;
    let runtime = runtime();
    let a = runtime.block_on(locks(&url(&master))).ttl(Duration::from_secs(2));
    let guard = runtime.block_on(a.mutex("k").try_acquire())?.ok_or("it is free")?;
    // What has been granted is at the replica, without waiting for it.
    assert!(replica.command(&["GET", "k"])?.text().starts_with("lw:x:"));
    std::thread::sleep(Duration::from_millis(3_500));
    assert!(guard.ensure_held().is_ok(), "renewed past its ttl");
    runtime.block_on(guard.release())?;
    let several: Vec<_> = (0..3).map(|_| runtime.block_on(locks(&url(&master)))).collect();
    let load = Load::start(&runtime, &several, &["contended"]);
    load.await_grants(&["contended"], 200);
    let outcome = load.end(&runtime);
    assert!(outcome.errors.is_empty(), "{:?}", outcome.errors);
    assert_eq!(outcome.overlaps, 0);
    outcome.assert_tokens_rise();
    Ok(())
}

#[test]
fn a_missing_replica_blocks_grants_and_delays_no_other_client() -> Test {
    let (master, mut replica) = pair()?;
    let runtime = runtime();
    let safe = runtime.block_on(locks(&url(&master)));
    let plain = runtime.block_on(locks(&master.url()));
    let cycle = |name: &str| {
        let mutex = plain.mutex(name);
        async move { mutex.acquire().await?.release().await }
    };
    runtime.block_on(cycle("warm"))?;
    let held =
        runtime.block_on(safe.clone().ttl(Duration::from_secs(3)).mutex("held").acquire())?;
    replica.stop()?;
    let tries: Vec<_> = (0..8)
        .map(|n| {
            let mutex = safe.mutex(format!("k{n}"));
            runtime.spawn(async move { mutex.try_acquire().await })
        })
        .collect();
    let mut times = Vec::new();
    while tries.iter().any(|attempt| !attempt.is_finished()) {
        let start = Instant::now();
        runtime.block_on(cycle("other"))?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    assert!(times.len() > 20, "the tries were answered at once: {times:?}");
    assert!(times[times.len() / 2] < Duration::from_millis(50), "{times:?}");
    for (n, attempt) in tries.into_iter().enumerate() {
        let error = runtime.block_on(attempt)?.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
        assert!(error.next_step().is_some_and(|hint| hint.contains("min_replicas")), "{error}");
        assert!(!error.may_have_applied(), "{error}");
        assert_eq!(master.command(&["EXISTS", &format!("k{n}")])?.text(), "0");
    }
    // Nobody confirms its renewals: it is told in time, whatever the master keeps.
    let lost = runtime
        .block_on(async { tokio::time::timeout(Duration::from_secs(10), held.lost()).await })?;
    assert_eq!(lost.reason, latchwork_store::LostReason::Expired);
    // A release needs no replica.
    let before = master.info("connected_slaves")?;
    replica.cont()?;
    let start = Instant::now();
    loop {
        match runtime.block_on(safe.mutex("k0").acquire_within(Duration::from_secs(5))) {
            Ok(guard) => {
                replica.stop()?;
                runtime.block_on(guard.release())?;
                replica.cont()?;
                break;
            }
            Err(error) => assert!(start.elapsed() < LONG, "{before} {error}"),
        }
    }
    Ok(())
}
