//! A lock that is lost while the command runs: the whole group is dead before the lock passes on
//! (hazards H1, H16, H81).

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::fs;
use std::time::{Duration, Instant};

use crate::common::{Holder, Running, SOON, Store, alive, eventually};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Signal, kill_process};

const DEAF: &str =
    "trap '' TERM; sh -c 'while :; do sleep 0.05; done' & while :; do sleep 0.05; done";
const POLITE: &str = "trap 'echo asked; exit 0' TERM; while :; do sleep 0.05; done";

#[test]
fn a_stopped_latchwork_loses_the_lock_and_its_command_first() {
    for script in ["sleep 300; echo x", DEAF] {
        let store = Store::new();
        let holder = store.holder(&["--ttl", "2s"], script);
        let first = holder.ready();
        let waiter = store.waiter("true");
        holder.signal(Signal::STOP);
        let second = waiter.ready();
        assert!(second.token > first.token);
        assert_eq!(alive(first.group), [] as [i32; 0]);
        assert_eq!(waiter.finish().code(), 0);
        holder.signal(Signal::CONT);
        let done = holder.finish();
        assert_eq!(done.code(), 73, "{done:?}");
        assert_eq!(done.stderr.matches("lost \"x\"").count(), 1, "{done:?}");
    }
}

#[test]
fn a_short_stop_loses_nothing() {
    let store = Store::new();
    let holder =
        store.holder(&["--ttl", "4s"], "until [ -e \"$TRACE/go\" ]; do sleep 0.02; done; exit 4");
    holder.ready();
    for _ in 0..3 {
        holder.signal(Signal::STOP);
        std::thread::sleep(Duration::from_millis(700));
        holder.signal(Signal::CONT);
        std::thread::sleep(Duration::from_millis(700));
    }
    fs::write(store.file("go"), "").unwrap();
    let done = holder.finish();
    assert_eq!(done.code(), 4, "{done:?}");
}

#[test]
fn a_hold_outlives_its_ttl_by_renewal() {
    let store = Store::new();
    let done = store.output(&["run", "--ttl", "1s", "x", "--", "sh", "-c", "sleep 3; exit 6"]);
    assert_eq!(done.code(), 6, "{done:?}");
}

#[test]
fn a_forced_release_ends_the_command() {
    for (script, asked) in [(POLITE, true), (DEAF, false)] {
        let store = Store::new();
        let holder = store.holder(&["--ttl", "2s"], script);
        let first = holder.ready();
        let released = store.output(&["--json", "release", "x", "--force"]);
        assert_eq!(released.code(), 0, "{released:?}");
        let value: serde_json::Value = serde_json::from_str(&released.stdout).unwrap();
        assert!(value["token"].as_str().unwrap().parse::<u64>().unwrap() > first.token);
        assert_eq!(value["evicted"].as_array().unwrap().len(), 1);
        let done = holder.finish();
        assert_eq!(done.code(), 73, "{done:?}");
        assert_eq!(done.stdout.contains("asked"), asked, "{done:?}");
        assert!(done.stderr.contains("taken away"), "{done:?}");
        assert_eq!(alive(first.group), [] as [i32; 0]);
    }
}

#[test]
fn a_removed_directory_ends_the_command() {
    let store = Store::new();
    let holder = store.holder(&["--ttl", "2s"], POLITE);
    let first = holder.ready();
    fs::remove_dir_all(store.path()).unwrap();
    let done = holder.finish();
    assert_eq!(done.code(), 73, "{done:?}");
    assert_eq!(alive(first.group), [] as [i32; 0]);
}

/// Holds every stripe of the store, so that no request is answered.
fn freeze(store: &Store) -> Vec<fs::File> {
    let stripes = fs::read_dir(store.path().join("stripes")).unwrap();
    let files = stripes.map(|stripe| fs::File::open(stripe.unwrap().path()).unwrap());
    files
        .inspect(|file| {
            eventually("a stripe", || flock(file, FlockOperation::NonBlockingLockExclusive).ok());
        })
        .collect()
}

#[test]
fn a_frozen_store_ends_the_command_in_time() {
    for (script, asked) in [(POLITE, true), (DEAF, false)] {
        let store = Store::new();
        let holder = store.holder(&["--ttl", "3s"], script);
        let first = holder.ready();
        let waiter = store.waiter("true");
        let frozen = freeze(&store);
        let done = holder.finish();
        assert_eq!(done.code(), 73, "{done:?}");
        assert_eq!(done.stdout.contains("asked"), asked, "{done:?}");
        assert!(done.stderr.contains("did not confirm"), "{done:?}");
        assert_eq!(alive(first.group), [] as [i32; 0]);
        drop(frozen);
        assert!(waiter.ready().token > first.token);
    }
}

#[test]
fn a_store_that_thaws_in_time_loses_nothing() {
    let store = Store::new();
    let holder =
        store.holder(&["--ttl", "6s"], "until [ -e \"$TRACE/go\" ]; do sleep 0.02; done; exit 4");
    holder.ready();
    let start = Instant::now();
    let frozen = freeze(&store);
    // Past one renewal, before the command would be asked to end.
    std::thread::sleep(Duration::from_millis(2_500).saturating_sub(start.elapsed()));
    drop(frozen);
    std::thread::sleep(Duration::from_secs(4));
    fs::write(store.file("go"), "").unwrap();
    let done = holder.finish();
    assert_eq!(done.code(), 4, "{done:?}");
}

#[test]
fn the_longest_hold_ends_the_command() {
    for (script, asked) in [(POLITE, true), (DEAF, false)] {
        let store = Store::new();
        let start = Instant::now();
        let holder = store.holder(&["--max-hold", "2s"], script);
        let first = holder.ready();
        let done = holder.finish();
        assert!(start.elapsed() > Duration::from_secs(1) && start.elapsed() < SOON);
        assert_eq!(done.code(), 73, "{done:?}");
        assert_eq!(done.stdout.contains("asked"), asked, "{done:?}");
        assert!(done.stderr.contains("--max-hold"), "{done:?}");
        assert_eq!(alive(first.group), [] as [i32; 0]);
        assert_eq!(store.output(&["run", "--wait", "0", "x", "--", "true"]).code(), 0);
    }
}

#[test]
fn a_stopped_latchwork_respects_the_longest_hold_too() {
    let store = Store::new();
    let holder = store.holder(&["--max-hold", "2s"], DEAF);
    let first = holder.ready();
    holder.signal(Signal::STOP);
    eventually("the end of the group", || alive(first.group).is_empty().then_some(()));
    holder.signal(Signal::CONT);
    assert_eq!(holder.finish().code(), 73);
}

#[test]
fn a_command_that_outlived_its_lock_is_reported() {
    let store = Store::new();
    let holder = store.holder(&[], "until [ -e \"$TRACE/go\" ]; do sleep 0.02; done");
    holder.ready();
    assert_eq!(store.output(&["release", "x", "--force"]).code(), 0);
    // Before the next renewal, ten seconds away, could notice.
    fs::write(store.file("go"), "").unwrap();
    let done = holder.finish();
    assert_eq!(done.code(), 73, "{done:?}");
}

#[test]
fn a_stopped_guardian_does_not_stop_latchwork() {
    let store = Store::new();
    let holder =
        store.holder(&["--ttl", "2s"], "until [ -e \"$TRACE/go\" ]; do sleep 0.02; done; exit 4");
    holder.ready();
    let guardian = holder.guardian();
    kill_process(guardian, Signal::STOP).unwrap();
    std::thread::sleep(Duration::from_secs(3));
    kill_process(guardian, Signal::CONT).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    fs::write(store.file("go"), "").unwrap();
    assert_eq!(holder.finish().code(), 4, "it read the newer word before it judged");
}

#[test]
fn a_stopped_guardian_does_not_delay_the_release() {
    let store = Store::new();
    let holder = store.holder(&[], "until [ -e \"$TRACE/go\" ]; do sleep 0.02; done; exit 4");
    let first = holder.ready();
    let guardian = holder.guardian();
    let waiter = store.waiter("true");
    kill_process(guardian, Signal::STOP).unwrap();
    eventually("a stop", || (crate::common::state(guardian) == 'T').then_some(()));
    fs::write(store.file("go"), "").unwrap();
    assert_eq!(holder.finish().code(), 4);
    assert!(waiter.ready().token > first.token);
    assert_eq!(crate::common::state(guardian), '-');
}

#[test]
fn unrelated_runs_are_not_touched() {
    let store = Store::new();
    let script = "echo up; until [ -e \"$TRACE/go\" ]; do sleep 0.02; done; exit 4";
    let other =
        Running::start(store.latchwork(&["run", "--ttl", "2s", "y", "--", "sh", "-c", script]));
    other.stdout.until("up");
    let holder = store.holder(&["--ttl", "2s"], POLITE);
    holder.ready();
    assert_eq!(store.output(&["release", "x", "--force"]).code(), 0);
    assert_eq!(holder.finish().code(), 73);
    fs::write(store.file("go"), "").unwrap();
    assert_eq!(other.finish().code(), 4);
}
