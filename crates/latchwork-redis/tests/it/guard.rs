//! The restart guard at real servers that lose data. Each disaster is played twice: with the guard
//! nobody is let in while the first holder still believes in its lock, and without it somebody is,
//! so that the test is known to be able to fail.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::turning::Turning;
use latchwork::{Driver, Guard, HoldState, LockManager};
use latchwork_redis::{RedisBackend, RedisConfig};
use latchwork_services::{Data, Direction, Persistence, Proxy, RedisOptions, RedisServer, Value};
use latchwork_store::{Attempt, Cause, Claim, ClaimId, ErrorKind, Key, Mode, Moment, Stamp};

/// Longer than any disaster here takes, so that the first holder believes to the end.
pub(crate) const TTL: Duration = Duration::from_secs(4);
pub(crate) const LONG: Duration = Duration::from_secs(60);
pub(crate) const GUARDED: &str = "?guard=true&max_ttl=4s";

pub(crate) fn at(port: u16, guarded: bool) -> String {
    format!("redis://127.0.0.1:{port}{}", if guarded { GUARDED } else { "" })
}

pub(crate) async fn backend(url: &str) -> (Arc<RedisBackend>, Driver) {
    let driver = Driver::start().unwrap();
    let config = RedisConfig::parse(url).unwrap();
    (RedisBackend::connect(config, driver.io()).await.unwrap(), driver)
}

pub(crate) async fn locks(url: &str) -> LockManager {
    let (backend, driver) = backend(url).await;
    LockManager::new(backend, driver)
}

pub(crate) async fn init(url: &str) -> latchwork_store::doctor::Prepared {
    let driver = Driver::start().unwrap();
    latchwork_redis::init(RedisConfig::parse(url).unwrap(), driver.io()).await.unwrap()
}

async fn doctor(url: &str) -> latchwork_store::doctor::Report {
    let driver = Driver::start().unwrap();
    latchwork_redis::doctor(RedisConfig::parse(url).unwrap(), driver.io()).await.unwrap()
}

pub(crate) fn do_at(server: &RedisServer, words: &[&str]) -> Value {
    server.command(words).unwrap().ok().unwrap()
}

pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A holder that is cut off from the world and believes in its lock to the end of its validity.
pub(crate) struct CutOff {
    guard: Guard,
    _locks: LockManager,
    _proxy: Proxy,
}

impl CutOff {
    async fn hold(port: u16, guarded: bool) -> Self {
        if guarded {
            init(&at(port, true)).await;
        }
        Self::acquire(port, guarded).await
    }

    /// As [`hold`](Self::hold), after a quarantine if there is one.
    async fn acquire(port: u16, guarded: bool) -> Self {
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
pub(crate) fn judged(guarded: bool, (both, _): (bool, bool)) {
    assert_eq!(both, !guarded, "two holders: {both}, with the guard: {guarded}");
}

/// A master and its replica, with a link between them that can be cut.
pub(crate) struct Pair {
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

/// The data comes back that was there before the first holder, and its marker with it.
#[tokio::test]
async fn h228_swapdb_and_back_serves_a_quarantine() {
    for (guarded, vouched) in [(true, true), (true, false), (false, false)] {
        let server = RedisServer::start(&RedisOptions::new()).unwrap();
        let elsewhere = at(server.port(), true).replace('?', "/5?");
        if guarded {
            init(&at(server.port(), true)).await;
            init(&elsewhere).await;
        }
        do_at(&server, &["SWAPDB", "0", "1"]);
        let first = if vouched {
            CutOff::hold(server.port(), guarded).await
        } else {
            CutOff::acquire(server.port(), guarded).await
        };
        do_at(&server, &["SWAPDB", "0", "1"]);
        judged(guarded, first.followed_at(server.port(), guarded).await);
        if guarded {
            let locks = locks(&elsewhere).await;
            let other = locks.mutex("k").try_acquire().await.unwrap();
            assert!(other.is_some(), "a database that kept its place has no quarantine");
            let report = doctor(&at(server.port(), true)).await;
            assert!(report.is_fit(), "{report:#?}");
        }
    }
}

/// Not prevented: the process, its run id and its replication id are the same. The doctor says so.
#[tokio::test]
async fn h229_an_old_snapshot_that_is_reloaded_is_not_seen() {
    let server =
        RedisServer::start(&RedisOptions::new().persistence(Persistence::Snapshot)).unwrap();
    init(&at(server.port(), true)).await;
    assert!(doctor(&at(server.port(), true)).await.is_fit());
    do_at(&server, &["SAVE"]);
    let first = CutOff::acquire(server.port(), true).await;
    do_at(&server, &["DEBUG", "RELOAD", "NOSAVE"]);
    let other = locks(&at(server.port(), true)).await;
    let second = other.mutex("k").try_acquire().await.unwrap().expect("the lock was lost");
    assert_eq!(first.guard.state(), HoldState::Held, "two holders");
    assert!(second.token() > first.guard.token(), "a fence still refuses the first");
    let report = doctor(&at(server.port(), true)).await;
    assert!(!report.is_fit(), "{report:#?}");
    let debug = report.findings.iter().find(|one| one.code == "debug").unwrap();
    assert!(debug.consequence.contains("RELOAD NOSAVE"), "{debug:?}");
    assert_eq!(
        debug.remedy,
        "set enable-debug-command no (from Redis 7.0 on), or take DEBUG from all users; \
         then restart the server, so that the guard waits for lost locks"
    );
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
async fn h34_a_replaced_master_that_keeps_running() {
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
async fn h37_a_failover_and_back_keeps_the_quarantine() {
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
pub(crate) fn marker_of(run_id: &str, server: &RedisServer) {
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

pub(crate) fn claim(id: u128, ttl: Duration) -> Claim {
    Claim::new(
        Key::new("k").unwrap(),
        ClaimId::from_u128(id),
        Mode::Exclusive,
        ttl,
        Stamp::new(Moment::from_nanos(1)),
    )
    .with(|it| {
        it.holder = "test".into();
        it.waits = false;
    })
}

#[track_caller]
pub(crate) fn in_quarantine(attempt: &Attempt) -> Duration {
    match attempt {
        Attempt::Blocked(blocked) if blocked.cause == Cause::Quarantine => {
            blocked.retry_after.unwrap()
        }
        other => panic!("not in quarantine: {other:?}"),
    }
}
