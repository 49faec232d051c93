//! What others do to the keys and leases of a claim: its holder and its waiters are told at once.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::time::Instant;

use crate::common::*;
use futures_util::future::join_all;
use latchwork_services::{Cut, EtcdOptions, EtcdServer, Proxy, etcdctl};
use latchwork_store::{Backend, LostReason, Wake};

/// Before the first renewal of a ttl of 30 s could notice.
const AT_ONCE: std::time::Duration = std::time::Duration::from_secs(6);

fn server() -> EtcdServer {
    EtcdServer::start(&EtcdOptions::new()).unwrap()
}

#[test]
fn h09_a_revoked_lease_is_reported_at_once() {
    let server = server();
    run(async {
        let locks = client(&server.url()).await.ttl(30 * SEC);
        let guard = locks.mutex("k").acquire().await.unwrap();
        watches(&server, |n| n == 1.0).await;
        let start = Instant::now();
        etcdctl(server.port(), &["lease", "revoke", lease_of(&keys_of(&server, "k")[0])]).unwrap();
        let lost = tokio::time::timeout(AT_ONCE, guard.lost()).await.expect("it is told");
        assert_eq!(lost.reason, LostReason::Taken, "after {:?}", start.elapsed());
        // The next one holds it without waiting for anything to run out.
        let next = locks.mutex("k").acquire_within(AT_ONCE).await.unwrap();
        assert!(next.token() > guard.token());
    });
}

/// H61: the lease lives on, and goes on being kept alive.
#[test]
fn h61_a_key_deleted_behind_a_live_lease_is_told_at_once() {
    let server = server();
    run(async {
        let locks = client(&server.url()).await.ttl(30 * SEC);
        let guard = locks.mutex("k").acquire().await.unwrap();
        watches(&server, |n| n == 1.0).await;
        let key = keys_of(&server, "k").remove(0);
        etcdctl(server.port(), &["del", &key]).unwrap();
        let lost = tokio::time::timeout(AT_ONCE, guard.lost()).await.expect("it is told");
        assert_eq!(lost.reason, LostReason::Taken);
        let alive = etcdctl(server.port(), &["lease", "timetolive", lease_of(&key)]).unwrap();
        assert!(alive.contains("remaining"), "its lease lives: {alive}");
    });
}

/// The time between the first and the last is judged in the best of some rounds: a busy machine only
/// adds to it.
#[test]
fn h75_a_hundred_guards_report_one_loss_together() {
    let server = server();
    run(async {
        let locks = client(&server.url()).await.ttl(30 * SEC);
        let mut best = std::time::Duration::MAX;
        for _ in 0..5 {
            watches(&server, |n| n == 0.0).await;
            let names: Vec<_> = (0..100).map(|n| format!("many/{n}")).collect();
            let mutexes: Vec<_> = names.iter().map(|name| locks.mutex(name)).collect();
            let guards = join_all(mutexes.iter().map(|mutex| mutex.acquire())).await;
            let guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
            watches(&server, |n| n == 100.0).await;
            etcdctl(server.port(), &["del", "many", "--prefix"]).unwrap();
            let told = tokio::time::timeout(AT_ONCE, join_all(guards.iter().map(|g| g.lost())));
            let told = told.await.expect("all are told");
            assert!(told.iter().all(|lost| lost.reason == LostReason::Taken));
            let at = || told.iter().map(|lost| lost.at);
            best = best.min(at().max().unwrap().since(at().min().unwrap()));
            if best < std::time::Duration::from_millis(50) {
                return;
            }
        }
        panic!("the last was told {best:?} after the first");
    });
}

#[test]
fn a_broken_watch_is_reopened_and_reports_missed_deletes() {
    let server = server();
    let proxy = Proxy::plain(server.port()).unwrap();
    run(async {
        let url = format!("etcd://127.0.0.1:{}", proxy.port());
        let locks = client(&url).await.ttl(60 * SEC);
        let guards = [locks.mutex("a").acquire().await, locks.mutex("b").acquire().await];
        let [first, second] = guards.map(Result::unwrap);
        watches(&server, |n| n == 2.0).await;
        proxy.refuse_connections().unwrap();
        proxy.cut(Cut::Reset).unwrap();
        watches(&server, |n| n == 0.0).await;
        etcdctl(server.port(), &["del", &keys_of(&server, "a")[0]]).unwrap();
        proxy.accept_connections().unwrap();
        // Gone while nobody watched.
        let lost = tokio::time::timeout(2 * AT_ONCE, first.lost()).await.expect("it is told");
        assert_eq!(lost.reason, LostReason::Taken);
        watches(&server, |n| n == 1.0).await;
        second.ensure_held().unwrap();
        etcdctl(server.port(), &["del", &keys_of(&server, "b")[0]]).unwrap();
        let lost = tokio::time::timeout(AT_ONCE, second.lost()).await.expect("it is told");
        assert_eq!(lost.reason, LostReason::Taken);
    });
}

/// More of them than are looked at at a time.
#[test]
fn a_hundred_broken_watches_report_missed_deletes() {
    let server = server();
    let proxy = Proxy::plain(server.port()).unwrap();
    run(async {
        let url = format!("etcd://127.0.0.1:{}", proxy.port());
        let locks = client(&url).await.ttl(60 * SEC);
        let names: Vec<_> = (0..100).map(|n| format!("many/{n}")).collect();
        let mutexes: Vec<_> = names.iter().map(|name| locks.mutex(name)).collect();
        let guards = join_all(mutexes.iter().map(|mutex| mutex.acquire())).await;
        let guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
        watches(&server, |n| n == 100.0).await;
        proxy.refuse_connections().unwrap();
        proxy.cut(Cut::Reset).unwrap();
        watches(&server, |n| n == 0.0).await;
        let gone: Vec<_> = (0..10).map(|tens| 10 * tens + 7).collect();
        for n in &gone {
            let key = keys_of(&server, &format!("many%2F{n}")).remove(0);
            etcdctl(server.port(), &["del", &key]).unwrap();
        }
        proxy.accept_connections().unwrap();
        let told = join_all(gone.iter().map(|n| guards[*n].lost()));
        let told = tokio::time::timeout(2 * AT_ONCE, told).await.expect("all are told");
        assert!(told.iter().all(|lost| lost.reason == LostReason::Taken));
        watches(&server, |n| n == 90.0).await;
        for (n, guard) in guards.iter().enumerate() {
            assert_eq!(guard.ensure_held().is_ok(), !gone.contains(&n), "{n}");
        }
        // They watch again, and have nothing else to tell.
        etcdctl(server.port(), &["del", "many", "--prefix"]).unwrap();
        let told = join_all(guards.iter().map(|guard| guard.lost()));
        tokio::time::timeout(AT_ONCE, told).await.expect("all are told");
        watches(&server, |n| n == 0.0).await;
    });
}

#[test]
fn a_lock_that_is_given_back_is_not_watched() {
    let server = server();
    run(async {
        let locks = client(&server.url()).await;
        let guard = locks.mutex("k").acquire().await.unwrap();
        watches(&server, |n| n == 1.0).await;
        guard.release().await.unwrap();
        watches(&server, |n| n == 0.0).await;
    });
}

/// H59: the own place went first, before the wait or during it: what comes is no grant.
#[test]
fn h59_a_waiter_without_a_place_is_not_granted() {
    let server = server();
    run(async {
        let client = bare(&server.url()).await;
        for before_the_wait in [true, false] {
            let (first, second) = (claim("k"), claim("k"));
            client.granted(&first).await;
            let blocked = client.blocked(&second).await;
            let own = keys_of(&server, "k").pop().unwrap();
            let revoke = || etcdctl(server.port(), &["lease", "revoke", lease_of(&own)]).unwrap();
            if before_the_wait {
                revoke();
                client.released(&first).await;
                assert_eq!(client.wait(&second, &blocked).await.unwrap(), Wake::Look);
            } else {
                let leaves = async {
                    // Two of the waiter; the holder may have one.
                    watches(&server, |n| n >= 2.0).await;
                    revoke();
                    client.released(&first).await;
                };
                let (wake, ()) = tokio::join!(client.wait(&second, &blocked), leaves);
                assert_eq!(wake.unwrap(), Wake::Look);
            }
            assert!(!client.held(&second).await, "it has no place");
            client.granted(&second).await;
            client.released(&second).await;
        }
    });
}

/// The place ahead went between the try and the wait: the own one was there then.
#[test]
fn the_next_waiter_is_granted_before_its_wait_begins() {
    let server = server();
    run(async {
        let client = bare(&server.url()).await;
        let (first, second) = (claim("k"), claim("k"));
        client.granted(&first).await;
        let blocked = client.blocked(&second).await;
        client.released(&first).await;
        let Wake::Admitted { grant, .. } = client.wait(&second, &blocked).await.unwrap() else {
            panic!("it is the next");
        };
        assert_eq!(client.granted(&second).await, grant.token);
        assert!(client.held(&second).await);
    });
}

/// A place further back only moves up: whoever is still ahead holds the key.
#[test]
fn a_departure_ahead_grants_only_the_next() {
    let server = server();
    run(async {
        let client = bare(&server.url()).await;
        let (first, second, third) = (claim("k"), claim("k"), claim("k"));
        client.granted(&first).await;
        client.blocked(&second).await;
        let blocked = client.blocked(&third).await;
        client.released(&second).await;
        assert_eq!(client.wait(&third, &blocked).await.unwrap(), Wake::Look);
        client.blocked(&third).await;
    });
}
