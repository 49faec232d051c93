//! What only etcd can suffer: leases and keys that end apart, compaction, restarts.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::time::{Duration, Instant};

use crate::common::*;
use latchwork_services::{Direction, EtcdOptions, EtcdServer, Proxy, etcdctl};
use latchwork_store::{Attempt, Backend, Cause, Linger, LostReason, Mode, Wake};

fn server() -> EtcdServer {
    EtcdServer::start(&EtcdOptions::new()).unwrap()
}

/// H59: a waiter whose lease ended in line is not admitted by that place.
#[test]
fn h59_an_ended_place_grants_nothing() {
    let server = server();
    run(async {
        let (holder, waiter) = (client(&server.url()).await, client(&server.url()).await);
        let guard = holder.mutex("k").acquire().await.unwrap();
        let mutex = waiter.mutex("k").fair();
        let waits = mutex.acquire_within(20 * SEC);
        let ends = async {
            until(&holder, "k", |shown| shown.waiters.len() == 1).await;
            let last = keys_of(&server, "k").pop().unwrap();
            let lease = last.rsplit('/').next().unwrap();
            etcdctl(server.port(), &["lease", "revoke", lease]).unwrap();
            guard.release().await.unwrap();
        };
        let (next, ()) = tokio::join!(waits, ends);
        let next = next.unwrap();
        let shown = show(&holder, "k").await;
        assert_eq!(shown.holders.len(), 1, "the guard has a key: {shown:?}");
        next.ensure_held().unwrap();
        next.release().await.unwrap();
    });
}

/// H61: the key is deleted while its lease lives on and goes on being kept alive.
#[test]
fn h61_a_key_deleted_behind_a_live_lease_is_lost() {
    let server = server();
    run(async {
        let locks = client(&server.url()).await;
        let guard = locks.mutex("k").acquire().await.unwrap();
        etcdctl(server.port(), &["del", &keys_of(&server, "k")[0]]).unwrap();
        let lost = tokio::time::timeout(10 * SEC, guard.lost()).await.unwrap();
        assert_eq!(lost.reason, LostReason::Taken);
        let next = locks.mutex("k").acquire_within(10 * SEC).await.unwrap();
        next.release().await.unwrap();
    });
}

/// H116: one request deletes the place ahead and the own one, and their watches tell it in any order.
/// Who was admitted by the first of them learns from the second that nothing is held.
#[test]
fn h116_a_deletion_with_the_place_ahead_is_reported() {
    let server = server();
    let proxy = Proxy::plain(server.port()).unwrap();
    run(async {
        let url = format!("etcd://127.0.0.1:{}", proxy.port());
        let holder = client(&server.url()).await.ttl(30 * SEC);
        let waiter = client(&url).await.ttl(30 * SEC);
        let mut told_after = Vec::new();
        for _ in 0..100 {
            let guard = holder.mutex("k").acquire().await.unwrap();
            let mutex = waiter.mutex("k");
            let waits = mutex.acquire_within(20 * SEC);
            let deletes = async {
                until(&holder, "k", |shown| shown.waiters.len() == 1).await;
                // What the watches tell does not arrive at once.
                proxy.trickle(Direction::ToClient, Some((48, Duration::from_millis(3))));
                etcdctl(server.port(), &["del", "k/", "--prefix"]).unwrap();
            };
            let (next, ()) = tokio::join!(waits, deletes);
            let next = next.unwrap();
            let admitted = Instant::now();
            if show(&holder, "k").await.holders.is_empty() {
                let lost = tokio::time::timeout(10 * SEC, next.lost()).await.unwrap();
                assert_eq!(lost.reason, LostReason::Taken);
                told_after.push(admitted.elapsed());
            } else {
                next.release().await.unwrap();
            }
            proxy.trickle(Direction::ToClient, None);
            drop(guard);
            until(&holder, "k", |shown| shown.holders.is_empty()).await;
            if told_after.len() == 5 {
                break;
            }
        }
        let first = told_after.iter().min().expect("some were admitted by the first watch");
        // A hold that is not watched yet is looked at after 250 ms.
        assert!(*first < SEC / 5, "told after {told_after:?}");
    });
}

/// Far behind in a long line the whole of it is not read each time, but the own place is looked at.
#[test]
fn h107_a_deleted_place_is_taken_again() {
    let server = server();
    run(async {
        let (others, client) = (bare(&server.url()).await, bare(&server.url()).await);
        // On a slow machine all of this takes longer than the usual ttl.
        let patient = || claim("k").with(|it| it.ttl = 60 * SEC);
        let line: Vec<_> = (0..70).map(|_| patient()).collect();
        others.granted(&line[0]).await;
        for waiter in &line[1..] {
            others.blocked(waiter).await;
        }
        let last = patient();
        assert_eq!(client.blocked(&last).await.ahead, Some(69));
        // What is renewed at the same time is a transaction as well, but no second look has one.
        let mut looks = Vec::new();
        for _ in 0..5 {
            let before = Requests::of(&server);
            assert_eq!(client.blocked(&last).await.ahead, Some(69));
            looks.push(Requests::of(&server).since(before));
        }
        assert!(looks.iter().all(|look| look.reads == 0), "{looks:?}");
        assert_eq!(looks.iter().map(|look| look.transactions).min(), Some(1), "{looks:?}");
        let places = keys_of(&server, "k");
        etcdctl(server.port(), &["del", &places[70]]).unwrap();
        assert_eq!(client.blocked(&last).await.ahead, Some(69));
        assert_eq!(keys_of(&server, "k").len(), 71, "it has a place again");
        // The claim notices, too, that the place ahead has gone.
        others.released(&line[69]).await;
        assert_eq!(client.blocked(&last).await.ahead, Some(68));
        client.released(&last).await;
    });
}

/// A transaction has room for so many places. Behind more of them the line is read.
#[test]
fn h107_a_waiter_behind_200_holders_stays_blocked() {
    let server = server();
    run(async {
        let client = bare(&server.url()).await;
        let permit = || {
            claim("k").with(|it| {
                it.mode = Mode::Permits { take: 1, of: 200 };
                it.ttl = 60 * SEC;
            })
        };
        let holders: Vec<_> = (0..200).map(|_| permit()).collect();
        for holder in &holders {
            client.granted(holder).await;
        }
        let waiter = permit();
        for _ in 0..2 {
            let blocked = client.blocked(&waiter).await;
            assert_eq!((blocked.ahead, blocked.cause), (Some(0), Cause::Held));
        }
        client.released(&holders[100]).await;
        client.granted(&waiter).await;
    });
}

/// Who looks again reads the line up to its own place. That may have been deleted by hand and been
/// made anew, further behind, by a request that comes late.
#[test]
fn h107_a_place_that_has_moved_back_is_found() {
    let server = server();
    run(async {
        let (other, client) = (bare(&server.url()).await, bare(&server.url()).await);
        let held = claim("k");
        other.granted(&held).await;
        let waiter = claim("k");
        client.blocked(&waiter).await;
        let key = keys_of(&server, "k").pop().unwrap();
        let value = etcdctl(server.port(), &["get", &key, "--print-value-only"]).unwrap();
        etcdctl(server.port(), &["del", &key]).unwrap();
        let lease = format!("--lease={}", lease_of(&key));
        etcdctl(server.port(), &["put", &lease, &key, value.trim()]).unwrap();
        let blocked = client.blocked(&waiter).await;
        assert_eq!(keys_of(&server, "k").len(), 2, "one place, not two");
        let waits = tokio::time::timeout(10 * SEC, client.wait(&waiter, &blocked));
        let (woken, _) = tokio::join!(waits, other.released(&held));
        let woken = woken.expect("it waits for the place ahead, and not for its own").unwrap();
        assert!(matches!(woken, Wake::Admitted { .. }), "{woken:?}");
    });
}

/// H65: compaction does not end a wait.
#[test]
fn h65_a_waiter_is_admitted_after_a_compaction() {
    let server = server();
    run(async {
        let (holder, waiter) = (client(&server.url()).await, client(&server.url()).await);
        let guard = holder.mutex("k").acquire().await.unwrap();
        let mutex = waiter.mutex("k");
        let waits = mutex.acquire_within(20 * SEC);
        let compacts = async {
            until(&holder, "k", |shown| shown.waiters.len() == 1).await;
            etcdctl(server.port(), &["put", "x", "1"]).unwrap();
            let fields = etcdctl(server.port(), &["get", "x", "--write-out=fields"]).unwrap();
            let revision = fields.lines().find_map(|l| l.strip_prefix("\"Revision\" : ")).unwrap();
            etcdctl(server.port(), &["compact", revision]).unwrap();
            guard.release().await.unwrap();
        };
        let (next, ()) = tokio::join!(waits, compacts);
        next.unwrap().release().await.unwrap();
    });
}

#[test]
fn a_hold_survives_a_restart_of_the_server() {
    let mut server = server();
    run(async {
        let locks = client(&server.url()).await.ttl(10 * SEC);
        let guard = locks.mutex("k").acquire().await.unwrap();
        // Renewed once: the streams that break are open. Connecting asks for a keep-alive, too.
        let before = Requests::of(&server).keep_alives as f64;
        let renewed = "grpc_method=\"LeaseKeepAlive\"";
        counted(&server, "grpc_server_msg_received_total", renewed, |n| n > before).await;
        server.restart().unwrap();
        // Past what the renewal before the restart was good for.
        tokio::time::sleep(11 * SEC).await;
        guard.ensure_held().expect("it was renewed after the restart");
        let other = client(&server.url()).await;
        assert!(other.mutex("k").try_acquire().await.unwrap().is_none());
        guard.release().await.unwrap();
    });
}

/// D8: a put does not refresh its lease, so a lease that has been in the pool for a while is kept alive
/// in the same flight; and the grant lasts its whole ttl from then on.
#[test]
fn d8_a_lease_from_the_pool_gives_its_whole_ttl() {
    let server = server();
    run(async {
        let (holder, waiter) = (bare(&server.url()).await, bare(&server.url()).await);
        let with_ttl = |seconds: u32| {
            let mut claim = claim("k");
            claim.ttl = seconds * SEC;
            claim
        };
        let (first, second) = (with_ttl(5), with_ttl(5));
        holder.granted(&first).await;
        holder.released(&first).await;
        tokio::time::sleep(3 * SEC).await;
        let (asked, before) = (Requests::of(&server), std::time::Instant::now());
        holder.granted(&second).await;
        assert_eq!(Requests::of(&server).since(asked).leases, 0, "it is three seconds old");
        let next = with_ttl(60);
        while matches!(waiter.try_acquire(&next).await, Ok(Attempt::Blocked(_))) {
            tokio::time::sleep(SEC / 20).await;
        }
        let kept = before.elapsed();
        assert!(kept >= 5 * SEC, "it ended after {kept:?}");
    });
}

/// Since 3.7 a read of keys alone does not say under which lease they are.
#[test]
fn h208_holds_and_lists_are_right_on_each_version() {
    for options in [EtcdOptions::new(), EtcdOptions::of_the_system()] {
        let server = EtcdServer::start(&options).unwrap();
        run(async {
            let (locks, other) = (client(&server.url()).await, client(&server.url()).await);
            let guard = locks.mutex("job").acquire().await.unwrap();
            let names = || async {
                let list = other.list("").await.unwrap();
                list.iter().map(|shown| shown.key.to_string()).collect::<Vec<_>>()
            };
            assert_eq!(names().await, ["job"]);
            // Over several renewals.
            tokio::time::sleep(2 * 2 * SEC).await;
            guard.ensure_held().unwrap();
            assert_eq!(names().await, ["job"]);
            guard.release().await.unwrap();
        });
    }
}

/// Somebody closed the key of a holder under another lease: the claim is over, whatever its own lease says.
#[test]
fn h208_a_place_that_was_put_again_is_lost() {
    for options in [EtcdOptions::new(), EtcdOptions::of_the_system()] {
        let server = EtcdServer::start(&options).unwrap();
        run(async {
            let (client, claim) = (bare(&server.url()).await, claim("k"));
            client.granted(&claim).await;
            assert!(client.held(&claim).await);
            let other = bare(&server.url()).await;
            answered(|| other.release(&claim, Linger::For(60 * SEC))).await;
            assert!(!client.held(&claim).await);
        });
    }
}
