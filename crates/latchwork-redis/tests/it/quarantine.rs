//! What a quarantine does to holders, waiters, Clusters and people.

use std::time::Instant;

use futures_util::future::join_all;
use latchwork::Driver;
use latchwork_redis::RedisConfig;
use latchwork_services::{ClusterOptions, Data, Proxy, RedisCluster, RedisOptions, RedisServer};
use latchwork_store::{Attempt, Backend, BackendErrorKind, ClaimId, ErrorKind, Key, Renewal};

/// Longer than any disaster here takes, so that the first holder believes to the end.
use crate::guard::*;

#[tokio::test]
async fn an_equal_replication_id_does_not_hide_a_restart() {
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    let url = at(server.port(), true);
    init(&url).await;
    let (backend, _driver) = backend(&url).await;
    let granted = backend.try_acquire(&claim(1, TTL)).await.unwrap();
    assert!(matches!(granted, Attempt::Granted(_)));
    backend.release(&claim(1, TTL), latchwork_store::Linger::None).await.unwrap();
    marker_of("0123456789", &server);
    let left = in_quarantine(&backend.try_acquire(&claim(2, TTL)).await.unwrap());
    assert!(left > TTL && left <= TTL + TTL / 50, "{left:?}");
}

#[tokio::test]
async fn a_quarantine_keeps_holders_and_refuses_others() {
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    let url = at(server.port(), true);
    init(&url).await;
    let (backend, _driver) = backend(&url).await;
    let mine = claim(1, TTL);
    let Attempt::Granted(grant) = backend.try_acquire(&mine).await.unwrap() else { panic!() };
    marker_of("0123456789", &server);
    let Attempt::Granted(again) = backend.try_acquire(&mine).await.unwrap() else { panic!() };
    assert_eq!(again.token, grant.token);
    in_quarantine(&backend.try_acquire(&claim(2, TTL)).await.unwrap());
    let renewed = backend.renew_all(std::slice::from_ref(&mine)).await.pop().unwrap().unwrap();
    assert!(matches!(renewed, Renewal::Held { token, .. } if token == grant.token));
    let released = backend.release(&mine, latchwork_store::Linger::None).await.unwrap();
    assert_eq!(released, latchwork_store::Released::Yes);
    in_quarantine(&backend.try_acquire(&mine).await.unwrap());
    // A clock that goes back makes the quarantine longer, never shorter.
    let ahead = do_at(&server, &["TIME"]).list()[0].text().parse::<u64>().unwrap() + 3_600;
    let marker = do_at(&server, &["GET", "lw:guard"]).text();
    let words: Vec<&str> = marker.split(' ').collect();
    let marker = format!("{} {ahead}000 {} {}", words[0], words[2], words[3]);
    do_at(&server, &["SET", "lw:guard", &marker]);
    let left = in_quarantine(&backend.try_acquire(&mine).await.unwrap());
    assert!(left <= TTL + TTL / 50, "it began anew: {left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_in_quarantine_keeps_the_queue() {
    for guarded in [true, false] {
        let server = RedisServer::start(&RedisOptions::new()).unwrap();
        let url = at(server.port(), guarded);
        if guarded {
            init(&url).await;
        }
        let (one, two) = (locks(&url).await, locks(&url).await);
        let held = one.mutex("k").acquire().await.unwrap();
        let next = two.mutex("k");
        let waiter = tokio::spawn(async move { next.acquire().await.map(|g| (g, Instant::now())) });
        until("the waiter can be told", || {
            let details = do_at(&server, &["LRANGE", "k:lw:line", "0", "-1"]);
            details.list().iter().any(|detail| {
                let text = detail.text();
                text.get(79..80).is_some_and(|process| process != "-")
            })
        });
        if guarded {
            marker_of("0123456789", &server);
        }
        let released = Instant::now();
        held.release().await.unwrap();
        let (guard, came) = waiter.await.unwrap().unwrap();
        let waited = came.saturating_duration_since(released);
        assert_eq!(waited >= TTL, guarded, "{waited:?}, with the guard: {guarded}");
        guard.release().await.unwrap();
    }
}

/// Also those whose requests go out together.
#[tokio::test]
async fn none_of_many_concurrent_tries_is_granted_after_a_loss() {
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    let url = at(server.port(), true);
    init(&url).await;
    let (backend, _driver) = backend(&url).await;
    let named = |n: u32| {
        claim(0, TTL).with(|it| {
            it.key = Key::new(format!("k{n}")).unwrap();
            it.id = ClaimId::random();
        })
    };
    let claims: Vec<_> = (0..64).map(named).collect();
    let tries = || join_all(claims.iter().map(|claim| backend.try_acquire(claim)));
    for attempt in tries().await {
        assert!(matches!(attempt, Ok(Attempt::Granted(_))), "{attempt:?}");
    }
    do_at(&server, &["FLUSHALL"]);
    for attempt in tries().await {
        in_quarantine(&attempt.unwrap());
    }
}

#[tokio::test]
async fn the_lengths_are_constants_of_the_namespace() {
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    let url = at(server.port(), true);
    init(&url).await;
    let locks = locks(&url).await;
    locks.mutex("k").acquire().await.unwrap().release().await.unwrap();
    let error = locks.mutex("k").ttl(TTL * 2).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("ttl: 8s") && error.to_string().contains("4s"), "{error}");
    let (guarded, _driver) = backend(&url).await;
    for refused in [
        guarded.try_acquire(&claim(1, TTL * 2)).await.map(drop),
        guarded.renew_all(&[claim(1, TTL * 2)]).await.pop().unwrap().map(drop),
    ] {
        assert_eq!(refused.unwrap_err().kind, BackendErrorKind::Invalid);
    }
    for other in ["max_ttl=3s", "max_ttl=4s&deposed=1s"] {
        let url = format!("redis://127.0.0.1:{}?guard=true&{other}", server.port());
        let (other, _driver) = backend(&url).await;
        let refused = other.try_acquire(&claim(1, TTL / 2)).await.unwrap_err();
        assert_eq!(refused.kind, BackendErrorKind::Mismatch);
        assert!(refused.message.contains("max_ttl 4s"), "{refused}");
    }
    // Other lengths come by `init`, and only while nobody holds.
    let held = locks.mutex("k").acquire().await.unwrap();
    let shorter = format!("redis://127.0.0.1:{}?guard=true&max_ttl=3s", server.port());
    let driver = Driver::start().unwrap();
    let config = RedisConfig::parse(&shorter).unwrap();
    let refused = latchwork_redis::init(config, driver.io()).await.unwrap_err();
    assert!(refused.to_string().contains("the first is k"), "{refused}");
    held.release().await.unwrap();
    let prepared = init(&shorter).await;
    assert!(prepared.steps[0].contains("it was 4s"), "{prepared:?}");
    let (shorter, _driver) = backend(&shorter).await;
    let granted = shorter.try_acquire(&claim(2, TTL / 2)).await.unwrap();
    assert!(matches!(granted, Attempt::Granted(_)));
}

#[tokio::test]
async fn a_free_lock_costs_one_command_and_its_release_one() {
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    init(&at(server.port(), true)).await;
    let proxy = Proxy::redis(server.port()).unwrap();
    let locks = locks(&at(proxy.port(), true)).await;
    locks.mutex("k").acquire().await.unwrap().release().await.unwrap();
    let before = proxy.counts();
    for _ in 0..10 {
        locks.mutex("k").acquire().await.unwrap().release().await.unwrap();
    }
    let after = proxy.counts();
    for (name, count) in &after.commands {
        let more = count - before.commands.get(name).copied().unwrap_or_default();
        assert_eq!(more, if name == "EVALSHA" { 20 } else { 0 }, "{name}");
    }
}

#[tokio::test]
async fn on_a_cluster_each_slot_has_a_quarantine_of_its_own() {
    let mut cluster = RedisCluster::start(&ClusterOptions::default()).unwrap();
    let url = format!("{}?guard=true&max_ttl=4s&deposed=0s&namespaces=shop", cluster.url());
    let (backend, _driver) = backend(&url).await;
    let on = |text: &str, id| claim(id, TTL).with(|it| it.key = Key::new(text).unwrap());
    // The nodes are young; what is more, a slot's history is not that of its node.
    in_quarantine(&backend.try_acquire(&on("shop:a", 1)).await.unwrap());
    assert_eq!(init(&url).await.steps.len(), 2);
    for text in ["shop:a", "shop:b", "c"] {
        let attempt = backend.try_acquire(&on(text, 2)).await.unwrap();
        assert!(matches!(attempt, Attempt::Granted(_)), "{text}: {attempt:?}");
    }
    let (lost, kept) = ("shop:{a}", "shop:{b}");
    let slots = [cluster.slot_of(lost).unwrap(), cluster.slot_of(kept).unwrap()];
    let owners = slots.map(|slot| cluster.node_of_slot(slot).unwrap());
    assert_ne!(owners[0], owners[1]);
    cluster.node_mut(owners[0]).kill();
    cluster.wait_for_new_master(slots[0], owners[0], LONG).unwrap();
    // The replica has all locks, and cannot know that.
    in_quarantine(&backend.try_acquire(&on("shop:a", 3)).await.unwrap());
    in_quarantine(&backend.try_acquire(&on("x:a", 3)).await.unwrap());
    let attempt = backend.try_acquire(&on("shop:{b}other", 3)).await.unwrap();
    assert!(matches!(attempt, Attempt::Granted(_)), "{attempt:?}");
}

#[tokio::test]
async fn people_are_told_how_long_it_takes() {
    let mut server = RedisServer::start(&RedisOptions::new()).unwrap();
    let url = at(server.port(), true);
    let report = async |url: &str| {
        let driver = Driver::start().unwrap();
        latchwork_redis::doctor(RedisConfig::parse(url).unwrap(), driver.io()).await.unwrap()
    };
    let fresh = report(&url).await;
    assert!(fresh.find("guard").unwrap().consequence.contains("first use"), "{fresh:#?}");
    let url = format!("{url}&namespaces=shop");
    let prepared = init(&url).await;
    assert!(prepared.steps.len() == 2 && prepared.steps[1].contains("\"shop\""), "{prepared:?}");
    let calm = report(&url).await;
    assert!(calm.find("guard").unwrap().found.contains("max_ttl 4s"), "{calm:#?}");
    assert!(calm.find("quarantine").is_none(), "{calm:#?}");
    let off = report(&at(server.port(), false)).await;
    assert_eq!(off.find("guard").unwrap().severity.word(), "critical", "{off:#?}");
    server.restart(Data::Empty).unwrap();
    let shop = locks(&url).await.namespace("shop");
    assert!(shop.mutex("k").try_acquire().await.unwrap().is_none());
    let shown = shop.inspect("k").await.unwrap();
    assert!(shown.notes.iter().any(|note| note.contains("quarantine")), "{shown:?}");
    let worried = report(&url).await;
    let told = worried.find("quarantine").unwrap();
    assert!(told.found.contains("\"shop\"") && told.remedy.contains("init"), "{told:?}");
    init(&url).await;
    assert!(shop.mutex("k").try_acquire().await.unwrap().is_some());
    let without = at(server.port(), false);
    assert!(init(&without).await.steps.is_empty(), "without the guard: nothing to do");
}
