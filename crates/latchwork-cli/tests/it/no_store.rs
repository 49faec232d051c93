//! Stores that do not answer, or are something else: what is said, when, and with which code.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use latchwork_services::{
    EtcdOptions, EtcdServer, PostgresOptions, PostgresServer, RedisOptions, RedisServer,
    ZooKeeperOptions, ZooKeeperServer,
};
use latchwork_store::testing::stalls;

use crate::common::{Finished, Running, Store};

/// Schemes of servers, without TLS.
const SCHEMES: [&str; 4] = ["redis", "zk", "etcd", "postgres"];

/// Runs it, and tells how long that took.
fn timed(store: &Store, url: &str, words: &[&str]) -> (Finished, Duration) {
    let begun_at = Instant::now();
    let done = store.output(&[&["--store", url], words].concat());
    (done, begun_at.elapsed())
}

/// A server that takes connections and says nothing costs what the command line allows.
#[test]
fn a_wait_bounds_the_first_try_to_connect() {
    let store = Store::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut said = String::new();
    for scheme in SCHEMES {
        let url = format!("{scheme}://127.0.0.1:{port}");
        for (wait, least) in [("2.2", 2_200), ("0.1", 100)] {
            let (done, took) = timed(&store, &url, &["run", "--wait", wait, "x", "--", "true"]);
            assert_eq!(done.code(), 69, "{done:?}");
            assert!(took >= Duration::from_millis(least), "{scheme} {took:?}");
            assert!(took < stalls::widened(Duration::from_secs(4), took), "{scheme} {took:?}");
            said += &done.stderr;
        }
    }
    assert!(said.contains("no answer within 2.2s"), "{said}");
    assert!(said.contains("the address is correct, or wait longer (--wait)"), "{said}");
}

/// A wait of an hour says in its first seconds that no server is there.
#[test]
fn a_store_that_is_away_is_reported_without_verbosity() {
    let store = Store::new();
    let mut server = RedisServer::start(&RedisOptions::new()).unwrap();
    let url = server.url();
    server.kill();
    for verb in [&["run"][..], &["hold"], &["once", "--every", "1d"]] {
        let command = if verb[0] == "hold" { &["x"][..] } else { &["x", "--", "true"] };
        let words = [&["--store", &url], verb, &["--wait", "1h"], command].concat();
        let waiting = Running::start(store.latchwork(&words));
        let line = waiting.stderr.until("waiting for a connection");
        assert!(line.contains("cannot connect to 127.0.0.1"), "{line}");
    }
    let quiet = ["-q", "--store", &url, "run", "--wait", "1500ms", "x", "--", "true"];
    assert_eq!(store.output(&quiet).stderr.lines().count(), 1, "the error");
    server.restart(latchwork_services::Data::Kept).unwrap();
    let holder = store.holder_with(&["--ttl", "60s"], "sleep 300; echo", |command| {
        command.env("LATCHWORK_STORE", &url);
    });
    crate::common::Holder::ready(&holder);
    let words = ["--store", &url, "run", "--wait", "1h", "x", "--", "true"];
    let waiting = Running::start(store.latchwork(&words));
    let shown = || store.output(&["--store", &url, "show", "x"]).stdout;
    crate::common::eventually("it waits", || shown().contains("waiter").then_some(()));
    server.kill();
    let line = waiting.stderr.until("trying again");
    assert!(line.contains("waiting for \"x\": "), "{line}");
}

/// No later try succeeds, so none is made.
#[test]
fn a_server_of_another_kind_is_named_at_once() {
    let store = Store::new();
    let redis = RedisServer::start(&RedisOptions::new().requirepass("s3cret")).unwrap();
    let etcd = EtcdServer::start(&EtcdOptions::new()).unwrap();
    let zookeeper = ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap();
    let postgres = PostgresServer::start().unwrap();
    for (port, own, what) in [
        (redis.port(), "redis", "is Redis or Valkey"),
        (etcd.port(), "etcd", "is etcd, or another server of gRPC"),
        (zookeeper.port(), "zk", "is ZooKeeper"),
        (postgres.port(), "postgres", "is PostgreSQL"),
    ] {
        for scheme in SCHEMES.into_iter().filter(|scheme| *scheme != own) {
            let url = format!("{scheme}://127.0.0.1:{port}");
            let words = ["run", "--wait", "20", "x", "--", "true"];
            let (done, took) = timed(&store, &url, &words);
            assert_eq!(done.code(), 64, "{url}: {done:?}");
            assert!(done.stderr.contains(what) && done.stderr.contains("--store: "), "{done:?}");
            assert!(done.stderr.contains(", or the port of the other server"), "{done:?}");
            assert!(took < stalls::widened(Duration::from_secs(4), took), "{url}: {took:?}");
            let ls = timed(&store, &url, &["ls"]).0;
            assert!(ls.code() == 64 && ls.stderr.contains(what), "{ls:?}");
        }
    }
}

/// What cannot get better ends at once, however long the command may wait.
#[test]
fn a_permanent_refusal_is_no_wait() {
    let store = Store::new();
    let redis = RedisServer::start(&RedisOptions::new()).unwrap();
    let options = PostgresOptions::new().access("host all app 127.0.0.1/32 scram-sha-256");
    let postgres = PostgresServer::start_with(&options).unwrap();
    postgres.psql("CREATE ROLE app LOGIN PASSWORD 'pw'").unwrap();
    let at = postgres.port();
    for (url, code, part) in [
        (
            format!("{}/99", redis.url()),
            64,
            "name a database that the server has; CONFIG GET databases",
        ),
        (format!("postgres://app@127.0.0.1:{at}/postgres"), 77, "give a password: "),
        (format!("postgres://app:no@127.0.0.1:{at}/postgres"), 77, "check the user, the password"),
        (format!("postgres://postgres@127.0.0.1:{at}/nowhere"), 64, "create the database"),
    ] {
        let (done, took) = timed(&store, &url, &["run", "--wait", "1m", "x", "--", "true"]);
        assert_eq!(done.code(), code, "{done:?}");
        assert!(done.stderr.contains(part), "{done:?}");
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
}

/// `init` of a store that needs nothing asks all the same whether it is there.
#[test]
fn init_of_a_store_that_is_away_fails() {
    let store = Store::new();
    let mut server = RedisServer::start(&RedisOptions::new()).unwrap();
    let prepared = timed(&store, &server.url(), &["init"]).0;
    assert_eq!(prepared.code(), 0, "{prepared:?}");
    assert!(prepared.stdout.contains("needs no preparation"), "{prepared:?}");
    let url = server.url();
    server.kill();
    let port = url.rsplit(':').next().unwrap().trim_end_matches('/').to_owned();
    for url in [url.clone(), format!("etcd://127.0.0.1:{port}"), format!("zk://127.0.0.1:{port}")] {
        let done = timed(&store, &url, &["init"]).0;
        assert_eq!((done.code(), &*done.stdout), (69, ""), "{url}: {done:?}");
    }
}
