//! What locks cost in round trips, over a way that is slow.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::time::{Duration, Instant};

use crate::common::*;
use latchwork_services::{Direction, EtcdOptions, EtcdServer, Proxy};
use latchwork_store::Backend;

const TRIP: Duration = Duration::from_millis(120);

/// How many trips the quickest of several rounds took: the machine makes some slower, none faster.
fn trips(rounds: &[Duration]) -> u32 {
    let quickest = rounds.iter().min().expect("some rounds");
    (quickest.as_millis() / TRIP.as_millis()) as u32
}

#[test]
fn a_free_lock_is_one_trip_and_so_is_its_release() {
    let server = EtcdServer::start(&EtcdOptions::new()).unwrap();
    let proxy = Proxy::plain(server.port()).unwrap();
    run(async {
        let locks = client(&format!("etcd://127.0.0.1:{}", proxy.port())).await.ttl(30 * SEC);
        for direction in [Direction::ToServer, Direction::ToClient] {
            proxy.delay(direction, TRIP / 2);
        }
        let (mut acquires, mut tries, mut releases) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..6 {
            let start = Instant::now();
            let guard = locks.mutex("k").acquire().await.unwrap();
            acquires.push(start.elapsed());
            let start = Instant::now();
            guard.release().await.unwrap();
            releases.push(start.elapsed());
            let start = Instant::now();
            let guard = locks.mutex("k").try_acquire().await.unwrap().unwrap();
            tries.push(start.elapsed());
            guard.release().await.unwrap();
        }
        assert_eq!((trips(&acquires), trips(&tries), trips(&releases)), (1, 1, 1));
    });
}

#[test]
fn a_try_at_a_held_lock_is_one_trip() {
    let server = EtcdServer::start(&EtcdOptions::new()).unwrap();
    let proxy = Proxy::plain(server.port()).unwrap();
    run(async {
        let holder = client(&server.url()).await.ttl(30 * SEC);
        let other = client(&format!("etcd://127.0.0.1:{}", proxy.port())).await.ttl(30 * SEC);
        let _guard = holder.mutex("k").acquire().await.unwrap();
        for direction in [Direction::ToServer, Direction::ToClient] {
            proxy.delay(direction, TRIP / 2);
        }
        let mut tries = Vec::new();
        for _ in 0..4 {
            let start = Instant::now();
            assert!(other.mutex("k").try_acquire().await.unwrap().is_none());
            tries.push(start.elapsed());
        }
        assert_eq!(trips(&tries), 1, "{tries:?}");
    });
}

/// Any process may renew a claim that was left. Where its lease was granted, no other claim can have the lease; elsewhere
/// the key is read first, so that no other lock is lengthened.
#[test]
fn a_left_claim_is_renewed_in_one_trip_where_it_was_granted() {
    let server = EtcdServer::start(&EtcdOptions::new()).unwrap();
    let proxy = Proxy::plain(server.port()).unwrap();
    run(async {
        let url = format!("etcd://127.0.0.1:{}", proxy.port());
        let (here, elsewhere) = (bare(&url).await, bare(&url).await);
        let claim = claim("k").with(|it| it.ttl = 30 * SEC);
        here.granted(&claim).await;
        here.detach(&claim);
        assert!(elsewhere.held(&claim).await, "it has found the place");
        for direction in [Direction::ToServer, Direction::ToClient] {
            proxy.delay(direction, TRIP / 2);
        }
        for (client, expected) in [(&here, 1), (&elsewhere, 2)] {
            let mut renewals = Vec::new();
            for _ in 0..4 {
                let start = Instant::now();
                assert!(client.held(&claim).await);
                renewals.push(start.elapsed());
            }
            assert_eq!(trips(&renewals), expected, "{renewals:?}");
        }
    });
}
