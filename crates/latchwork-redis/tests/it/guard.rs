//! The restart guard at real servers that lose data. Each disaster is played twice: with the guard
//! nobody is let in while the first holder still believes in its lock, and without it somebody is,
//! so that the test is known to be able to fail.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::turning::Turning;
use futures_util::future::join_all;
use latchwork::{Driver, Guard, HoldState, LockManager};
use latchwork_redis::{RedisBackend, RedisConfig};
use latchwork_services::{
    ClusterOptions, Data, Direction, Persistence, Proxy, RedisCluster, RedisOptions, RedisServer,
    Value,
};
use latchwork_store::{
    Attempt, Backend, BackendErrorKind, Cause, Claim, ClaimId, ErrorKind, Key, Mode, Moment, Order,
    Renewal, Stamp,
};

/// Longer than any disaster here takes, so that the first holder believes to the end.
const TTL: Duration = Duration::from_secs(4);
const LONG: Duration = Duration::from_secs(60);
const GUARDED: &str = "?guard=true&max_ttl=4s";

fn at(port: u16, guarded: bool) -> String {
    format!("redis://127.0.0.1:{port}{}", if guarded { GUARDED } else { "" })
}

async fn backend(url: &str) -> (Arc<RedisBackend>, Driver) {
    let driver = Driver::start().unwrap();
    let config = RedisConfig::parse(url).unwrap();
    (RedisBackend::connect(config, driver.io()).await.unwrap(), driver)
}

async fn locks(url: &str) -> LockManager {
    let (backend, driver) = backend(url).await;
    LockManager::new(backend, driver)
}

async fn init(url: &str) -> latchwork_store::doctor::Prepared {
    let driver = Driver::start().unwrap();
    latchwork_redis::init(RedisConfig::parse(url).unwrap(), driver.io()).await.unwrap()
}

fn do_at(server: &RedisServer, words: &[&str]) -> Value {
    server.command(words).unwrap().ok().unwrap()
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A holder that is cut off from the world and believes in its lock to the end of its validity.
struct CutOff {
    guard: Guard,
    _locks: LockManager,
    _proxy: Proxy,
}

impl CutOff {
    async fn hold(port: u16, guarded: bool) -> Self {
        if guarded {
            init(&at(port, true)).await;
        }
        let proxy = Proxy::redis(port).unwrap();
        let locks = locks(&at(proxy.port(), guarded)).await;
        let guard = locks.mutex("k").ttl(TTL).acquire().await.unwrap();
        proxy.freeze(Direction::ToServer);
        proxy.freeze(Direction::ToClient);
        Self { guard, _locks: locks, _proxy: proxy }
    }

    /// Lets another process try at this server until it is let in, and tells whether both believed
    /// to hold then, and whether the later token is the larger one.
    async fn followed_at(&self, port: u16, guarded: bool) -> (bool, bool) {
        assert_eq!(self.guard.state(), HoldState::Held, "the disaster took too long");
        let locks = locks(&at(port, guarded)).await;
        if guarded {
            let error = locks.mutex("k").acquire_within(Duration::from_millis(20)).await;
            let error = error.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            assert!(error.to_string().contains("quarantine"), "{error}");
        }
        let next = locks.mutex("k").acquire_within(LONG).await.unwrap();
        (self.guard.state() == HoldState::Held, next.token() > self.guard.token())
    }
}

/// With the guard nobody else, without it somebody.
#[track_caller]
fn judged(guarded: bool, (both, _): (bool, bool)) {
    assert_eq!(both, !guarded, "two holders: {both}, with the guard: {guarded}");
}

/// A master and its replica, with a link between them that can be cut.
struct Pair {
    master: RedisServer,
    replica: RedisServer,
    link: Proxy,
}

impl Pair {
    fn start(options: RedisOptions) -> Self {
        let master = RedisServer::start(&options).unwrap();
        let link = Proxy::plain(master.port()).unwrap();
        let replica = RedisServer::start(&options.replica_of(link.port())).unwrap();
        let pair = Self { master, replica, link };
        pair.in_step(&pair.master, &pair.replica);
        pair
    }

    /// Waits until one has all that the other has.
    fn in_step(&self, from: &RedisServer, to: &RedisServer) {
        until("the replica follows", || {
            let offset = |server: &RedisServer, name: &str| server.info(name).unwrap_or_default();
            do_at(from, &["SET", "other:step", "1"]);
            offset(to, "master_link_status") == "up"
                && offset(to, "slave_repl_offset") == offset(from, "master_repl_offset")
        });
    }

    fn cut(&self) {
        self.link.freeze(Direction::ToServer);
        self.link.freeze(Direction::ToClient);
    }

    fn promote(server: &RedisServer) {
        do_at(server, &["REPLICAOF", "NO", "ONE"]);
    }
}

#[tokio::test]
async fn h35_a_restart_without_data() {
    for guarded in [true, false] {
        let mut server = RedisServer::start(&RedisOptions::new()).unwrap();
        let first = CutOff::hold(server.port(), guarded).await;
        server.restart(Data::Empty).unwrap();
        judged(guarded, first.followed_at(server.port(), guarded).await);
    }
}

#[tokio::test]
async fn h36_a_restart_with_an_old_snapshot() {
    for guarded in [true, false] {
        let options = RedisOptions::new().persistence(Persistence::Snapshot);
        let mut server = RedisServer::start(&options).unwrap();
        if guarded {
            // The marker is in the snapshot, and the lock is not.
            init(&at(server.port(), true)).await;
        }
        do_at(&server, &["SAVE"]);
        server.save_snapshot().unwrap();
        let first = CutOff::hold(server.port(), guarded).await;
        server.restart(Data::OldSnapshot).unwrap();
        if guarded {
            let identity = do_at(&server, &["GET", "lw:guard"]).text();
            assert!(identity.contains(':'), "the marker is in the snapshot: {identity:?}");
        }
        judged(guarded, first.followed_at(server.port(), guarded).await);
    }
}

#[tokio::test]
async fn h38_flushall() {
    for guarded in [true, false] {
        let server = RedisServer::start(&RedisOptions::new()).unwrap();
        let first = CutOff::hold(server.port(), guarded).await;
        do_at(&server, &["FLUSHALL"]);
        judged(guarded, first.followed_at(server.port(), guarded).await);
    }
}

#[tokio::test]
async fn h38_swapdb() {
    for guarded in [true, false] {
        let server = RedisServer::start(&RedisOptions::new()).unwrap();
        if guarded {
            // The other database has a good marker of its own.
            init(&at(server.port(), true).replace('?', "/1?")).await;
        }
        let first = CutOff::hold(server.port(), guarded).await;
        do_at(&server, &["SWAPDB", "0", "1"]);
        judged(guarded, first.followed_at(server.port(), guarded).await);
    }
}

#[tokio::test]
async fn h33_h50_a_failover_that_forgets_the_lock_and_its_token() {
    for guarded in [true, false] {
        let mut pair = Pair::start(RedisOptions::new());
        let warm = locks(&at(pair.master.port(), guarded)).await;
        if guarded {
            init(&at(pair.master.port(), true)).await;
        }
        warm.mutex("warm").acquire().await.unwrap().release().await.unwrap();
        pair.in_step(&pair.master, &pair.replica);
        pair.cut();
        // More tokens than waiting for the end of a quarantine uses up.
        for _ in 0..100 {
            warm.mutex("warm").acquire().await.unwrap().release().await.unwrap();
        }
        let first = CutOff::hold(pair.master.port(), guarded).await;
        pair.master.kill();
        Pair::promote(&pair.replica);
        let (both, rises) = first.followed_at(pair.replica.port(), guarded).await;
        judged(guarded, (both, rises));
        assert!(rises, "the token rises, with the guard: {guarded}");
    }
}

#[tokio::test]
async fn h34_a_master_that_was_replaced_and_goes_on() {
    // Here the guard alone is not enough: the old master must stop writing within `deposed`.
    for stops in [true, false] {
        let pair = Pair::start(RedisOptions::new());
        if stops {
            do_at(&pair.master, &["CONFIG", "SET", "min-replicas-max-lag", "2"]);
            do_at(&pair.master, &["CONFIG", "SET", "min-replicas-to-write", "1"]);
        }
        let url = |port: u16| format!("{}&deposed=4s", at(port, true));
        init(&url(pair.master.port())).await;
        let beside_it = locks(&url(pair.master.port())).await;
        let first = beside_it.mutex("k").ttl(TTL).acquire().await.unwrap();
        pair.in_step(&pair.master, &pair.replica);
        pair.cut();
        Pair::promote(&pair.replica);
        let next = locks(&url(pair.replica.port())).await;
        let second = next.mutex("k").acquire_within(LONG).await.unwrap();
        assert_eq!(first.state() == HoldState::Held, !stops, "the old master stops: {stops}");
        drop(second);
    }
}

#[tokio::test]
async fn h37_a_failover_to_and_fro() {
    for guarded in [true, false] {
        let mut pair = Pair::start(RedisOptions::new());
        let run_id = pair.master.info("run_id").unwrap();
        if guarded {
            init(&at(pair.master.port(), true)).await;
        }
        pair.in_step(&pair.master, &pair.replica);
        // Nobody locks anything between the failovers, so the marker names the first master still.
        Pair::promote(&pair.replica);
        let back = Proxy::plain(pair.replica.port()).unwrap();
        do_at(&pair.master, &["REPLICAOF", "127.0.0.1", &back.port().to_string()]);
        pair.in_step(&pair.replica, &pair.master);
        back.freeze(Direction::ToClient);
        back.freeze(Direction::ToServer);
        let first = CutOff::hold(pair.replica.port(), guarded).await;
        pair.replica.kill();
        Pair::promote(&pair.master);
        assert_eq!(pair.master.info("run_id").unwrap(), run_id);
        judged(guarded, first.followed_at(pair.master.port(), guarded).await);
    }
}

#[tokio::test]
async fn h47_a_replica_with_a_fast_clock() {
    for guarded in [true, false] {
        let mut pair = Pair::start(RedisOptions::new().with_clock());
        let clock = pair.replica.clock().unwrap();
        clock.step_forward(Duration::from_secs(120)).unwrap();
        let first = CutOff::hold(pair.master.port(), guarded).await;
        pair.in_step(&pair.master, &pair.replica);
        pair.master.kill();
        Pair::promote(&pair.replica);
        judged(guarded, first.followed_at(pair.replica.port(), guarded).await);
    }
}

/// What a version of Redis would leave that keeps its replication id over a restart: a marker of
/// another process that served the same replication history.
fn marker_of(run_id: &str, server: &RedisServer) {
    let identity = do_at(server, &["GET", "lw:guard"]).text();
    let identity = identity.replace(&server.info("run_id").unwrap(), run_id);
    do_at(server, &["SET", "lw:guard", &identity]);
}

#[tokio::test]
async fn h52_a_proxy_that_turns_to_another_server() {
    for asks in [true, false] {
        let known = RedisServer::start(&RedisOptions::new()).unwrap();
        let other = RedisServer::start(&RedisOptions::new()).unwrap();
        let proxy = Turning::start(known.port()).await;
        let url = format!("{}&via_proxy={asks}", at(proxy.port, true));
        init(&at(other.port(), true)).await;
        marker_of(&known.info("run_id").unwrap(), &other);
        let locks = locks(&url).await;
        assert!(locks.inspect("k").await.unwrap().is_free());
        let first = CutOff::hold(known.port(), true).await;
        proxy.turn_to(other.port()).await;
        let second = locks.mutex("k").try_acquire().await.unwrap();
        assert_eq!(second.is_none(), asks, "asked who answers: {asks}");
        assert_eq!(first.guard.state(), HoldState::Held);
    }
}

fn claim(id: u128, ttl: Duration) -> Claim {
    Claim {
        key: Key::new("k").unwrap(),
        id: ClaimId::from_u128(id),
        mode: Mode::Exclusive,
        order: Order::Fifo,
        ttl,
        holder: "test".into(),
        waits: false,
        floor: 0,
        stamp: Stamp::new(Moment::from_nanos(1)),
    }
}

#[track_caller]
fn in_quarantine(attempt: &Attempt) -> Duration {
    match attempt {
        Attempt::Blocked(blocked) if blocked.cause == Cause::Quarantine => {
            blocked.retry_after.unwrap()
        }
        other => panic!("not in quarantine: {other:?}"),
    }
}

#[tokio::test]
async fn another_process_with_the_same_replication_id_is_another_server() {
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
async fn who_holds_keeps_holding_in_quarantine_and_others_stay_out() {
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
async fn a_release_in_quarantine_serves_nobody_and_the_line_keeps_its_order() {
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
                text.split(' ').nth(10).is_some_and(|process| process != "-")
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
async fn of_many_at_once_nobody_is_let_in_after_a_loss() {
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    let url = at(server.port(), true);
    init(&url).await;
    let (backend, _driver) = backend(&url).await;
    let named = |n: u32| Claim {
        key: Key::new(format!("k{n}")).unwrap(),
        id: ClaimId::random(),
        ..claim(0, TTL)
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
    let on = |text: &str, id| Claim { key: Key::new(text).unwrap(), ..claim(id, TTL) };
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
    assert!(init("redis://127.0.0.1:1").await.steps.is_empty(), "without the guard: nothing to do");
}
