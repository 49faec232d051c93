//! The command on Redis, beside clients of other libraries.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::time::{Duration, Instant};

use crate::common::{Running, Store};
use latchwork_services::{Data, RedisOptions, RedisServer};
use serde_json::Value;

fn latchwork(store: &Store, server: &RedisServer, args: &[&str]) -> Running {
    let mut command = store.latchwork(args);
    command.env("LATCHWORK_STORE", server.url());
    Running::start(command)
}

fn server() -> RedisServer {
    RedisServer::start(&RedisOptions::new()).unwrap()
}

/// The bound is the design's 250 ms; the best of some tries counts, for a busy machine only adds.
#[test]
fn a_vanished_foreign_holder_is_followed_at_once() {
    let (store, server) = (Store::new(), server());
    let mut best = Duration::MAX;
    for _ in 0..10 {
        server.command(&["SET", "nightly", "v"]).unwrap().ok().unwrap();
        let run = latchwork(&store, &server, &["-v", "run", "nightly", "--", "echo", "runs"]);
        run.stderr.until("waiting for");
        std::thread::sleep(Duration::from_millis(333));
        server.command(&["DEL", "nightly"]).unwrap();
        let freed = Instant::now();
        run.stdout.until("runs");
        best = best.min(freed.elapsed());
        assert_eq!(run.finish().code(), 0);
        if best <= Duration::from_millis(250) {
            return;
        }
    }
    panic!("noticed only after {best:?}");
}

/// H413: `--wait` counts for a store that does not answer, too, however short the ttl is.
#[test]
fn h413_a_wait_outlasts_an_outage_that_is_longer_than_the_ttl() {
    let (store, mut server) = (Store::new(), server());
    server.command(&["SET", "nightly", "v", "PX", "2000"]).unwrap().ok().unwrap();
    let run = ["-v", "run", "--ttl", "1s", "--wait", "60s", "nightly", "--", "echo", "runs"];
    let run = latchwork(&store, &server, &run);
    run.stderr.until("waiting for");
    server.kill();
    std::thread::sleep(Duration::from_secs(4));
    server.restart(Data::Kept).unwrap();
    run.stdout.until("runs");
    assert_eq!(run.finish().code(), 0);
    server.kill();
    let start = Instant::now();
    let run = ["run", "--ttl", "1s", "--wait", "3s", "nightly", "--", "true"];
    assert_eq!(latchwork(&store, &server, &run).finish().code(), 69);
    assert!(start.elapsed() >= Duration::from_secs(3), "{:?}", start.elapsed());
}

/// H418: a single try at a store in quarantine says what keeps the lock, as a wait does.
#[test]
fn h418_a_single_try_names_the_quarantine() {
    let (store, server) = (Store::new(), server());
    let url = format!("{}?guard=true", server.url());
    let done = store.output(&["--store", &url, "run", "--wait", "0", "nightly", "--", "true"]);
    assert_eq!(done.code(), 75, "{done:?}");
    assert!(done.stderr.contains("not free: the server may have lost locks"), "{done:?}");
    assert!(done.stderr.contains(" init"), "{done:?}");
}

#[test]
fn a_holder_without_a_ttl_is_named() {
    let (store, server) = (Store::new(), server());
    server.command(&["SET", "nightly", "v"]).unwrap().ok().unwrap();
    let text = latchwork(&store, &server, &["show", "nightly"]).finish().stdout;
    assert!(text.starts_with("nightly: held"), "{text}");
    assert!(text.contains("without a ttl"), "{text}");
    let json = latchwork(&store, &server, &["--json", "show", "nightly"]).finish().stdout;
    let value: Value = serde_json::from_str(&json).unwrap();
    let notes = value["notes"].as_array().unwrap();
    assert!(notes.iter().any(|n| n.as_str().unwrap().contains("without a ttl")), "{json}");
    assert_eq!(value["held"], true);
    assert_eq!(value["holders"][0]["remaining_ms"], Value::Null);
}

/// A plain key has no queue, and cannot stay closed.
#[test]
fn what_a_plain_key_cannot_do_is_refused() {
    let (store, server) = (Store::new(), server());
    let url = format!("{}?plain=true", server.url());
    for (args, told, step) in [
        (
            &["run", "--fair", "x", "--", "echo", "ran"][..],
            "fair: this store does not queue waiters (key \"x\", store ",
            "leave out `fair`, or use a store with a queue",
        ),
        (
            &["once", "--every", "1d", "x", "--", "echo", "ran"],
            "once: this store cannot keep a key closed after it was released (key \"x\", store ",
            "use another store, or a plain lock if the task may run again",
        ),
        (&["run", "x", "--", "echo", "ran"], "", ""),
    ] {
        let done = latchwork(&store, &server, &[&["--store", &url], args].concat()).finish();
        assert_eq!(done.stdout == "ran\n", step.is_empty(), "{done:?}");
        assert!(done.stderr.contains(told) && done.stderr.trim_end().ends_with(step), "{done:?}");
    }
}

/// Nobody is told that a lock was taken away which is still there.
#[test]
fn a_foreign_holder_is_not_taken_away_by_force() {
    let (store, server) = (Store::new(), server());
    server.command(&["SET", "nightly", "v"]).unwrap().ok().unwrap();
    let done = latchwork(&store, &server, &["release", "nightly", "--force"]).finish();
    assert_eq!(done.code(), 78, "{done:?}");
    for part in ["\"nightly\"", "a client of another kind", "delete the key"] {
        assert!(done.stderr.contains(part), "{done:?}");
    }
    assert_eq!(server.command(&["GET", "nightly"]).unwrap().text(), "v");
}

/// How long it has held, or waited: also after a waiter has looked again, which it does each third
/// of its ttl.
#[test]
fn holder_and_waiter_are_shown_with_their_age() {
    let (store, server) = (Store::new(), server());
    let start = Instant::now();
    let held = latchwork(&store, &server, &["-v", "run", "nightly", "--", "sleep", "60"]);
    held.stderr.until("acquired");
    let waits = ["-v", "run", "nightly", "--ttl", "1s", "--", "true"];
    let waiter = latchwork(&store, &server, &waits);
    waiter.stderr.until("waiting for");
    let asked = Instant::now();
    std::thread::sleep(Duration::from_millis(1_500));
    let least = asked.elapsed();
    let json = latchwork(&store, &server, &["--json", "show", "nightly"]).finish().stdout;
    let value: Value = serde_json::from_str(&json).unwrap();
    for party in [&value["holders"][0], &value["waiters"][0]] {
        let age = Duration::from_millis(party["age_ms"].as_u64().unwrap());
        assert!(age >= least && age <= start.elapsed(), "{least:?} {json}");
    }
    let text = latchwork(&store, &server, &["show", "nightly"]).finish().stdout;
    assert!(text.contains("waiting for 1s") || text.contains("waiting for 2s"), "{text}");
}

#[test]
fn a_lock_of_redisson_is_another_kind() {
    let (store, server) = (Store::new(), server());
    server.command(&["HSET", "nightly", "6fa459ea:1", "1"]).unwrap().ok().unwrap();
    let done = latchwork(&store, &server, &["run", "nightly", "--", "true"]).finish();
    assert_eq!(done.code(), 78);
    assert!(done.stderr.contains("Redisson"), "{done:?}");
    let text = latchwork(&store, &server, &["show", "nightly"]).finish().stdout;
    assert!(!text.contains("free") && text.contains("hash"), "{text}");
}

/// Messages repeat the word that the user wrote, whatever answers there.
#[test]
fn a_valkey_address_is_used_and_shown_as_written() {
    let store = Store::new();
    let valkey = RedisServer::start(&RedisOptions::valkey()).unwrap();
    let (redis, port) = (server(), valkey.port());
    let address = format!("valkey://127.0.0.1:{port}");
    let run = latchwork(
        &store,
        &valkey,
        &["run", "nightly", "--", "sh", "-c", "echo held; exec sleep 60"],
    );
    run.stdout.until("held");
    let shown = store.output(&["--store", &address, "show", "nightly"]);
    assert!(shown.stdout.starts_with("nightly: held"), "{shown:?}");
    // The lock is the same by the other word.
    let other = format!("redis://127.0.0.1:{port}");
    let busy = store.output(&["--store", &other, "run", "--wait", "0", "nightly", "--", "true"]);
    assert_eq!(busy.code(), 75, "{busy:?}");
    let doctor = store.output(&["--store", &address, "doctor"]);
    let own = format!("Valkey {}, compatible", valkey.info("valkey_version").unwrap());
    assert!(doctor.stdout.contains(&address) && doctor.stdout.contains(&own), "{doctor:?}");
    let doctor =
        store.output(&["--store", &format!("valkey://127.0.0.1:{}", redis.port()), "doctor"]);
    assert!(doctor.stdout.contains("Redis ") && !doctor.stdout.contains("Valkey"), "{doctor:?}");
    for (address, code) in
        [("valkey://u:sekret@127.0.0.1:1", 69), ("valkeys://:sekret@h?ca=x&plain=x", 64)]
    {
        let done = store.output(&["--store", address, "ls"]);
        assert_eq!(done.code(), code, "{done:?}");
        let said = done.stderr.contains("valkey") && !done.stderr.contains("redis:");
        assert!(said && !done.stderr.contains("sekret"), "{done:?}");
    }
}

/// A server is named by the wrong scheme.
#[test]
fn a_wrong_scheme_names_the_right_one() {
    let store = Store::new();
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    for (address, part) in [
        (format!("redis+cluster://127.0.0.1:{}", server.port()), "not in a Cluster: use redis://"),
        (format!("redis+sentinel://127.0.0.1:{}/x", server.port()), "name the Sentinels"),
    ] {
        let done = store.output(&["--store", &address, "ls"]);
        assert_eq!(done.code(), 64, "{done:?}");
        assert!(done.stderr.contains(part), "{done:?}");
    }
}
