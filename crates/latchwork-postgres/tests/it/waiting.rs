//! What waiters cost a server, and what becomes of them when something breaks.

use std::time::{Duration, Instant};

use crate::common::*;
use latchwork_services::PostgresServer;
use latchwork_store::{Backend, Claim, Linger, Released, Wake};

/// Releases a key when two wait for it, and says how long after that the acquire of one of them takes.
async fn handed_on<T>(
    server: &PostgresServer,
    holder: &Bare,
    held: &Claim,
    acquires: impl Future<Output = T>,
) -> Duration {
    let release = async {
        until(server, "SELECT count(*) FROM latchwork_line", |n| n == "2").await;
        tokio::time::sleep(300 * MS).await;
        holder.released(held).await;
        Instant::now()
    };
    let (_, released) = tokio::join!(acquires, release);
    released.elapsed()
}

/// H131: a waiter holds a connection of the pool, or a transaction, for as long as it waits.
#[test]
fn h131_fifty_waiters_share_one_connection_that_listens() {
    let server = server();
    run(async {
        let holder = bare(&server.url()).await;
        let held = claim("k");
        holder.granted(&held).await;
        let waiting = bare(&server.url()).await;
        let claims: Vec<_> = (0..50).map(|_| like(&held)).collect();
        // Tries that come at the same time have no order.
        for claim in &claims {
            waiting.blocked(claim).await;
        }
        let waits = claims.iter().map(|claim| async {
            let grant = waiting.acquired(claim).await;
            waiting.released(claim).await;
            grant.token
        });
        let watch = async {
            until(&server, "SELECT count(*) FROM latchwork_line", |said| said == "50").await;
            tokio::time::sleep(500 * MS).await;
            let open =
                "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'";
            assert_eq!(server.psql(open).unwrap(), "0");
            let listen = format!("{LISTENERS} AND granted");
            assert_eq!(server.psql(&listen).unwrap(), "1");
            holder.released(&held).await;
        };
        let (tokens, ()) = tokio::join!(futures_util::future::join_all(waits), watch);
        assert!(tokens.is_sorted(), "first come, first served: {tokens:?}");
        // Nobody waits any more: the connection ends.
        until(&server, LISTENERS, |said| said == "0").await;
    });
}

/// H132: the connection that listens ends, and the wake-up with it.
#[test]
fn h132_a_waiter_survives_a_cut_listening_connection() {
    let server = server();
    run(async {
        let (holder, waiter) = (bare(&server.url()).await, bare(&server.url()).await);
        let held = claim("k").with(|it| it.ttl = 60 * SEC);
        holder.granted(&held).await;
        let waits = like(&held);
        let cut = async {
            until(&server, LISTENERS, |n| n == "1").await;
            let end = LISTENERS.replace("count(*)", "count(pg_terminate_backend(pid))");
            assert_eq!(server.psql(&end).unwrap(), "1");
            holder.released(&held).await;
            Instant::now()
        };
        let (_, released) = tokio::join!(waiter.acquired(&waits), cut);
        let took = released.elapsed();
        assert!(
            took < stalls::widened(5 * SEC, took),
            "served after {took:?}, not when a timer of 20 s ended"
        );
    });
}

/// H133: the next in the queue is dead; the key is given to it and waits for it.
#[test]
fn h133_a_dead_waiter_is_passed_over() {
    let server = server();
    run(async {
        let (holder, dead, next) =
            (bare(&server.url()).await, bare(&server.url()).await, bare(&server.url()).await);
        let held = claim("k").with(|it| it.ttl = 60 * SEC);
        holder.granted(&held).await;
        let (first, second) = (like(&held), like(&held));
        let blocked = dead.blocked(&first).await;
        let _ = tokio::time::timeout(5 * SEC, dead.wait(&first, &blocked)).await;
        dead.blocked(&first).await;
        drop(dead);
        until(&server, LISTENERS, |n| n == "0").await;
        let took = handed_on(&server, &holder, &held, next.acquired(&second)).await;
        assert!(
            took < stalls::widened(1_800 * MS, took),
            "{took:?}: it waits for no probation of the dead"
        );
    });
}

/// A waiter that nobody can tell, because it does not listen yet, and that never comes.
#[test]
fn a_waiter_that_never_comes_costs_the_next_its_patience() {
    let server = server();
    run(async {
        let (holder, silent, next) =
            (bare(&server.url()).await, bare(&server.url()).await, bare(&server.url()).await);
        let held = claim("k").with(|it| it.ttl = 60 * SEC);
        holder.granted(&held).await;
        let (first, second) = (like(&held), like(&held));
        silent.blocked(&first).await;
        let took = handed_on(&server, &holder, &held, next.acquired(&second)).await;
        assert!((1_900 * MS..5 * SEC).contains(&took), "{took:?}");
    });
}

/// H134: somebody who may notify forges a grant.
#[test]
fn h134_a_forged_grant_is_a_look() {
    let server = server();
    run(async {
        let (holder, waiter) = (bare(&server.url()).await, bare(&server.url()).await);
        let held = claim("k").with(|it| it.ttl = 60 * SEC);
        holder.granted(&held).await;
        let (waits, blocked) = waiter.waits_for(&held).await;
        let forge = "SELECT count(pg_notify('latchwork_' || lpad(to_hex(l.classid::bigint), 8, '0') || '_' \
             || lpad(to_hex(l.objid::bigint), 8, '0'), 'g ' || w.claim || ' 9000000000000000 2000000 ' || w.claim || ' 0')) \
             FROM pg_locks l, latchwork_line w WHERE l.locktype = 'advisory'";
        let wait = waiter.wait(&waits, &blocked);
        let forged = async {
            tokio::time::sleep(300 * MS).await;
            assert_eq!(server.psql(forge).unwrap(), "1");
        };
        let (wake, ()) = tokio::join!(tokio::time::timeout(10 * SEC, wait), forged);
        assert_eq!(wake.expect("the message came").unwrap(), Wake::Look);
        assert!(!waiter.held(&waits).await && holder.held(&held).await);
    });
}

/// A place that is withdrawn while the key is handed on leaves nothing.
#[test]
fn waiters_that_give_up_at_any_moment_leave_nothing() {
    let server = server();
    run(async {
        let (holder, waiter) = (bare(&server.url()).await, bare(&server.url()).await);
        for round in 0..40 {
            let held = claim("k");
            holder.granted(&held).await;
            let waits = like(&held);
            let wait = tokio::time::timeout(Duration::from_millis(round), waiter.acquired(&waits));
            let release = async {
                tokio::time::sleep(Duration::from_millis(round / 2)).await;
                holder.released(&held).await
            };
            let (_, released) = tokio::join!(wait, release);
            assert_eq!(released, Released::Yes);
            waiter.release(&waits, Linger::None).await.unwrap();
            assert!(waiter.show("k").await.is_free(), "round {round}");
        }
    });
}

/// A long queue: the last try is not slower than the first by much, and all are served in order.
#[test]
fn a_thousand_waiters_are_served_in_order_and_in_time() {
    const WAITERS: usize = 1_000;
    let server = server();
    run(async {
        let holder = bare(&server.url()).await;
        let held = claim("k").with(|it| it.ttl = 120 * SEC);
        holder.granted(&held).await;
        let waiting = bare(&server.url()).await;
        let claims: Vec<_> = (0..WAITERS).map(|_| like(&held)).collect();
        let mut tries = Vec::new();
        for claim in &claims {
            let start = Instant::now();
            waiting.blocked(claim).await;
            tries.push(start.elapsed());
        }
        let middle = |some: &[Duration]| {
            let mut some = some.to_vec();
            some.sort();
            some[some.len() / 2]
        };
        let (first, last) = (middle(&tries[..100]), middle(&tries[WAITERS - 100..]));
        let served = std::sync::Mutex::new(Vec::new());
        let waits = claims.iter().enumerate().map(|(n, claim)| {
            let (waiting, served) = (&waiting, &served);
            async move {
                waiting.acquired(claim).await;
                served.lock().unwrap().push((n, Instant::now()));
                waiting.released(claim).await;
            }
        });
        // Each tries once more before it waits. One that is still about to would be late for its turn.
        let heard = "SELECT count(*) FROM latchwork_line WHERE process IS NOT NULL";
        let release = async {
            tokio::time::sleep(tries.iter().sum()).await;
            until(&server, heard, |n| n == WAITERS.to_string()).await;
            holder.released(&held).await;
            Instant::now()
        };
        let (_, released) = tokio::join!(futures_util::future::join_all(waits), release);
        let drained = released.elapsed();
        println!("a try: {first:?} with few, {last:?} with {WAITERS}; drained in {drained:?}");
        let served = served.into_inner().unwrap();
        let late = served.windows(2).find(|pair| pair[0].0 > pair[1].0);
        let late = late.map(|pair| (pair[0].0, pair[1].0, pair[1].1 - released));
        let gap = served.windows(2).map(|pair| (pair[1].1 - pair[0].1, pair[0].0)).max();
        assert!(late.is_none(), "first come, first served: {late:?}; the longest gap: {gap:?}");
        assert!(last < 20 * first + 20 * MS, "{last:?} after {first:?}");
        assert!(drained < 60 * SEC, "{drained:?}");
    });
}
