//! What locks cost: requests, round trips and news of watches, counted at a proxy.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::sync::Arc;

use crate::common::*;
use latchwork::{Event, Handover, LockManager, Observer};
use latchwork_store::{Attempt, Backend, Holder, Key, Linger, Released, Renewal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// So long that no heart-beat comes while a test counts.
const LONG: Duration = Duration::from_secs(120);

async fn counted(proxy: &Proxy) -> LockManager {
    client(&url(proxy.port())).await.ttl(LONG)
}

#[test]
fn a_free_acquire_is_one_trip_and_a_release_one_request() {
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
            let claim = claim(LONG).with(|it| it.key = Key::new(format!("k{n}")).unwrap());
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
fn h73_a_hand_off_notifies_one_of_64_waiters() {
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
        // Each has taken its place, and watches the node ahead.
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
        // On a slow machine some wait for more than a second, and read who holds the key, which takes a list as well, and
        // watch anew; a list follows if the node ahead has gone meanwhile.
        let (lists, anew) = (counts["CHILDREN"] - counts["GET"], counts["WATCH"]);
        assert!((all..=all + anew).contains(&lists), "{counts:?}");
        assert_eq!((counts["DELETE"], counts["CREATE"]), (all + 1, 0), "{counts:?}");
        assert!(anew <= counts["GET"], "{counts:?}");
    });
}

/// Two trips to stand in line, and one when the lock is handed on: a list, which its own thread asks
/// for. It writes nothing, and asks nobody who holds the key if it has just read that.
#[test]
fn a_waiter_needs_two_trips_and_one_after_its_wake_up() {
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

/// Tells who is in the way, each time a waiter is told.
struct InTheWay(mpsc::UnboundedSender<Option<Holder>>);

impl Observer for InTheWay {
    fn event(&self, event: &Event<'_>) {
        if let Event::Waiting { blocked, .. } = event {
            self.0.send(blocked.holder.clone()).unwrap();
        }
    }
}

/// Who is not the next in line has five requests for a lock in all: it asks for the holder's name
/// only when it has waited for a second, and is told it then.
#[test]
fn a_later_waiter_reads_the_holders_name_after_1_s() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap();
    let proxy = Proxy::zookeeper(server.port()).unwrap();
    run(async {
        let others = client(&server.url()).await.ttl(LONG);
        let locks = counted(&proxy).await;
        locks.mutex("k").acquire().await.unwrap().release().await.unwrap();
        let holder = others.mutex("k").holder("the one in front").acquire().await.unwrap();
        let next = others.mutex("k").fair();
        let next = tokio::spawn(async move { next.acquire().await.unwrap() });
        until(&others, "k", |shown| shown.waiters.len() == 1).await;
        proxy.reset_counts();
        let (news, mut told) = mpsc::unbounded_channel();
        let mutex = locks.clone().observer(Arc::new(InTheWay(news))).mutex("k");
        let waits = tokio::spawn(async move { mutex.acquire().await.unwrap() });
        assert_eq!(told.recv().await.unwrap(), None, "it has not asked yet");
        let counts = proxy.counts();
        assert_eq!((counts["CREATE"], counts["CHILDREN"], counts["WATCH"]), (1, 1, 1));
        assert_eq!(counts.total(), 3, "{counts:?}");
        // It would look by itself, too, but only after ten seconds.
        let named = tokio::time::timeout(5 * SEC, told.recv()).await.expect("it asks");
        assert_eq!(named.unwrap(), Some("the one in front".into()));
        let counts = proxy.counts();
        assert_eq!((counts["SET"], counts["CHILDREN"], counts["GET"]), (1, 2, 1), "{counts:?}");
        assert_eq!(counts.total(), 6, "{counts:?}");
        holder.release().await.unwrap();
        next.await.unwrap().release().await.unwrap();
        waits.await.unwrap().release().await.unwrap();
        let counts = proxy.counts();
        assert_eq!((counts["CHILDREN"], counts["DELETE"], counts.total()), (3, 1, 8));
    });
}

/// Two readers of one process wait for the same writer, and it is watched once. Both are told its
/// name at once.
#[test]
fn joining_a_watch_reports_the_watched_holder() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap();
    let proxy = Proxy::zookeeper(server.port()).unwrap();
    run(async {
        let others = client(&server.url()).await.ttl(LONG);
        let locks = counted(&proxy).await;
        locks.rwlock("k").read().acquire().await.unwrap().release().await.unwrap();
        let holder = others.rwlock("k").write().holder("the one in front").acquire().await.unwrap();
        proxy.reset_counts();
        let (news, mut told) = mpsc::unbounded_channel();
        let locks = locks.observer(Arc::new(InTheWay(news)));
        let mut readers = JoinSet::new();
        for _ in 0..2 {
            let locks = locks.clone();
            readers.spawn(async move { locks.rwlock("k").read().acquire().await.unwrap() });
            assert_eq!(told.recv().await.unwrap(), Some("the one in front".into()));
        }
        let counts = proxy.counts();
        assert_eq!((counts["WATCH"], counts["GET"], counts.total()), (1, 1, 6), "{counts:?}");
        holder.release().await.unwrap();
        while let Some(reader) = readers.join_next().await {
            reader.unwrap().release().await.unwrap();
        }
    });
}

/// A hold that was waited for is handed over inside the process for as long as any other, although
/// its grant counts from a write that was answered long before.
#[test]
fn a_hold_that_was_waited_for_is_handed_over_without_a_request() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap();
    let proxy = Proxy::zookeeper(server.port()).unwrap();
    run(async {
        let holder = client(&server.url()).await.ttl(LONG);
        let locks = counted(&proxy).await.handover(Handover::new(3 * SEC, 10));
        let guard = holder.mutex("k").acquire().await.unwrap();
        let (first, second) = (locks.mutex("k"), locks.mutex("k"));
        let first = tokio::spawn(async move { first.acquire().await.unwrap() });
        until(&holder, "k", |shown| shown.waiters.len() == 1).await;
        let second = tokio::spawn(async move { second.acquire().await.unwrap() });
        // Longer than the slice.
        tokio::time::sleep(3500 * MS).await;
        guard.release().await.unwrap();
        let first = first.await.unwrap();
        proxy.reset_counts();
        first.release().await.unwrap();
        let second = second.await.unwrap();
        let counts = proxy.reset_counts();
        assert_eq!(counts.total(), 0, "{counts:?}");
        second.release().await.unwrap();
    });
}
