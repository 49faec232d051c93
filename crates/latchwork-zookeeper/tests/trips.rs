//! What locks cost: requests, round trips and news of watches, counted at a proxy.

#![allow(clippy::disallowed_methods, reason = "tests")]

mod common;

use std::sync::Arc;

use common::*;
use latchwork_core::{Attempt, Backend, Key, Linger, LockManager, Released, Renewal};
use tokio::task::JoinSet;

/// So long that no heart-beat comes while a test counts.
const LONG: Duration = Duration::from_secs(120);

async fn counted(proxy: &Proxy) -> LockManager {
    client(&url(proxy.port())).await.ttl(LONG)
}

#[test]
fn a_free_lock_is_two_requests_in_one_trip_and_its_release_is_one() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap();
    let proxy = Proxy::zookeeper(server.port()).unwrap();
    run(async {
        let locks = counted(&proxy).await;
        let first = locks.mutex("k").acquire().await.unwrap();
        first.release().await.unwrap();
        for _ in 0..10 {
            proxy.reset_counts();
            let guard = locks.mutex("k").acquire().await.unwrap();
            let counts = proxy.reset_counts();
            assert_eq!((counts.total(), counts.round_trips), (2, 1), "{counts:?}");
            assert_eq!((counts["CREATE"], counts["CHILDREN"]), (1, 1));
            guard.release().await.unwrap();
            let counts = proxy.reset_counts();
            assert_eq!((counts.total(), counts.round_trips), (1, 1), "{counts:?}");
            assert_eq!(counts["DELETE"], 1);
        }
    });
}

#[test]
fn the_first_use_of_a_key_makes_its_node_in_the_same_trip() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap();
    let proxy = Proxy::zookeeper(server.port()).unwrap();
    run(async {
        let locks = counted(&proxy).await;
        let up = locks.mutex("other").acquire().await.unwrap();
        proxy.reset_counts();
        let guard = locks.mutex("k").acquire().await.unwrap();
        let counts = proxy.reset_counts();
        assert_eq!((counts["CONTAINER"], counts.total(), counts.round_trips), (1, 3, 1));
        guard.release().await.unwrap();
        up.release().await.unwrap();
    });
}

#[test]
fn many_claims_are_renewed_by_one_write_and_a_look_at_each() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap();
    let proxy = Proxy::zookeeper(server.port()).unwrap();
    run(async {
        let (backend, _driver) = backend(&url(proxy.port())).await;
        let mut claims = Vec::new();
        for n in 0..20 {
            let claim =
                latchwork_core::Claim { key: Key::new(format!("k{n}")).unwrap(), ..claim(LONG) };
            let attempt = backend.try_acquire(&claim).await.unwrap();
            assert!(matches!(attempt, Attempt::Granted(_)));
            claims.push(claim);
        }
        proxy.reset_counts();
        let renewals = backend.renew_all(&claims).await;
        let counts = proxy.reset_counts();
        assert!(renewals.iter().all(|r| matches!(r, Ok(Renewal::Held { ttl: LONG, .. }))));
        assert_eq!((counts["SET"], counts["EXISTS"], counts.total()), (1, 20, 21));
        assert_eq!(counts.round_trips, 1);
        for claim in &claims {
            let released = backend.release(claim, Linger::None).await.unwrap();
            assert_eq!(released, Released::Yes);
        }
    });
}

/// H73: of 64 who wait, each hand-off is news to one, and he looks once.
#[test]
fn h73_each_hand_off_is_one_piece_of_news_for_64_waiters() {
    const CLIENTS: usize = 8;
    const EACH: usize = 8;
    let server = ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap();
    let proxy = Arc::new(Proxy::zookeeper(server.port()).unwrap());
    run(async {
        let holder = counted(&proxy).await;
        let guard = holder.mutex("k").acquire().await.unwrap();
        let mut waiters = JoinSet::new();
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(counted(&proxy).await);
        }
        for n in 0..CLIENTS * EACH {
            let locks = clients[n % CLIENTS].clone();
            waiters.spawn(async move {
                let guard = locks.mutex("k").fair().acquire().await.unwrap();
                guard.release().await.unwrap();
            });
        }
        // Each has taken its place, read who holds the key, and watches the node ahead.
        let all = (CLIENTS * EACH) as u64;
        proxy.counts_reach(|counts| counts["WATCH"] == all).await;
        until_so("all answers", || {
            let counts = proxy.counts();
            counts.answers == counts.total()
        })
        .await;
        proxy.reset_counts();
        guard.release().await.unwrap();
        while let Some(ended) = waiters.join_next().await {
            ended.unwrap();
        }
        let counts = proxy.counts();
        assert_eq!(counts.pushes, all, "one piece of news for each hand-off: {counts:?}");
        assert_eq!((counts["DELETE"], counts["CHILDREN"]), (all + 1, all), "{counts:?}");
        assert_eq!((counts["CREATE"], counts["WATCH"], counts["SET"]), (0, 0, 0), "{counts:?}");
    });
}

/// Two trips to stand in line, and one when the lock is handed on: a list, which its own thread asks
/// for. It writes nothing, and asks nobody who holds the key if it has just read that.
#[test]
fn who_waits_asks_twice_and_once_more_when_its_turn_comes() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap();
    let proxy = Proxy::zookeeper(server.port()).unwrap();
    run(async {
        let holder = client(&server.url()).await.ttl(LONG);
        let locks = counted(&proxy).await;
        locks.mutex("k").acquire().await.unwrap().release().await.unwrap();
        let guard = holder.mutex("k").acquire().await.unwrap();
        proxy.reset_counts();
        let mutex = locks.mutex("k");
        let waits = mutex.acquire_within(20 * SEC);
        let hands_on = async {
            until_so("it waits", || proxy.counts().answers == 3).await;
            let counts = proxy.reset_counts();
            assert_eq!((counts.total(), counts.round_trips), (3, 2), "{counts:?}");
            assert_eq!((counts["CREATE"], counts["CHILDREN"], counts["WATCH"]), (1, 1, 1));
            guard.release().await.unwrap();
        };
        let (next, ()) = tokio::join!(waits, hands_on);
        let next = next.unwrap();
        let counts = proxy.reset_counts();
        assert_eq!((counts.pushes, counts.total(), counts["CHILDREN"]), (1, 1, 1), "{counts:?}");
        let left = next.remaining();
        assert!(left > LONG * 9 / 10, "a full measure: {left:?}");
        next.release().await.unwrap();
        let counts = proxy.reset_counts();
        assert_eq!((counts.total(), counts["DELETE"]), (1, 1), "{counts:?}");
    });
}
