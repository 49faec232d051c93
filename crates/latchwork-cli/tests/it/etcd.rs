//! The command on etcd: the command that runs under a lock ends when the lock does.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::time::Duration;

use crate::common::{Finished, Holder, Running, SOON, Store, alive, eventually};
use latchwork_services::{EtcdOptions, EtcdServer, ServerClock, etcdctl};

fn server() -> EtcdServer {
    EtcdServer::start(&EtcdOptions::new()).unwrap()
}

fn first_key(server: &EtcdServer) -> String {
    let options = ["get", "x/", "--prefix", "--keys-only", "--sort-by=CREATE", "--limit=1"];
    etcdctl(server.port(), &options).unwrap().trim().into()
}

/// `etcdctl lock` lets its command run on beside the next one. The default ttl is 30 s, so this is
/// not the next renewal.
#[test]
fn a_revoked_lease_ends_the_command_at_once() {
    let deaf = "trap '' TERM; while :; do sleep 0.05; done";
    let polite = "trap 'echo asked; exit 0' TERM; while :; do sleep 0.05; done";
    for (script, asked) in [(polite, true), (deaf, false)] {
        let (store, server) = (Store::new(), server());
        let holder = store.holder_with(&[], script, |command| {
            command.env("LATCHWORK_STORE", server.url());
        });
        let first = holder.ready();
        // Whatever is held for a moment is watched.
        eventually("a watch", || {
            let watches = server.measure("etcd_debugging_mvcc_watcher_total", "").unwrap();
            (watches >= 1.0).then_some(())
        });
        let start = std::time::Instant::now();
        let lease = first_key(&server).rsplit('/').next().unwrap().to_owned();
        etcdctl(server.port(), &["lease", "revoke", &lease]).unwrap();
        let done = holder.finish();
        assert!(start.elapsed() < SOON.min(Duration::from_secs(8)), "{:?}", start.elapsed());
        assert_eq!(done.code(), 73, "{done:?}");
        assert_eq!(done.stdout.contains("asked"), asked, "{done:?}");
        assert!(done.stderr.contains("taken away"), "{done:?}");
        assert_eq!(alive(first.group), [] as [i32; 0]);
    }
}

#[test]
fn a_stopped_server_ends_the_command_before_the_ttl() {
    let (store, mut server) = (Store::new(), server());
    let holder = store.holder_with(&["--ttl", "4s"], "sleep 300", |command| {
        command.env("LATCHWORK_STORE", server.url());
    });
    let first = holder.ready();
    server.stop().unwrap();
    let done = holder.finish();
    assert_eq!(done.code(), 73, "{done:?}");
    assert!(done.stderr.contains("did not confirm"), "{done:?}");
    assert_eq!(alive(first.group), [] as [i32; 0]);
    server.cont().unwrap();
    let next = store.holder_with(&[], "true", |command| {
        command.env("LATCHWORK_STORE", server.url());
    });
    assert!(next.ready().token > first.token);
    assert_eq!(next.finish().code(), 0);
}

#[test]
fn locks_on_etcd_are_listed_shown_and_released_by_force() {
    let (store, server) = (Store::new(), server());
    let latchwork = |args: &[&str]| {
        let mut command = store.latchwork(args);
        command.env("LATCHWORK_STORE", server.url());
        Running::start(command)
    };
    let held = latchwork(&["-v", "run", "a/b", "--", "sleep", "300"]);
    held.stderr.until("acquired");
    let listed = latchwork(&["ls"]).finish().stdout;
    assert!(listed.contains("a/b"), "{listed}");
    let shown = latchwork(&["show", "a/b"]).finish().stdout;
    assert!(shown.contains("held") && shown.contains("a%2Fb"), "{shown}");
    assert_eq!(latchwork(&["release", "a/b", "--force"]).finish().code(), 0);
    assert_eq!(held.finish().code(), 73);
    assert!(latchwork(&["show", "a/b"]).finish().stdout.contains("free"));
    // 3.4.23 has known bugs of leases, newer versions have fewer.
    let doctor = latchwork(&["doctor"]).finish();
    assert!(doctor.stdout.contains("version") && doctor.stdout.contains("etcd 3."), "{doctor:?}");
}

/// The wall clock of a host is hours or days ahead: it runs no finished task again, and the task is not
/// closed for longer than it should be.
#[test]
fn h209_once_believes_no_hosts_wall_clock() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let (store, server) = (Store::new(), server());
    // The zone in which it is about noon: no midnight is near.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let to_noon = 12 - (now.as_secs() / 3_600 % 24) as i64;
    // The names of these zones have their signs turned around.
    let zone = format!("Etc/GMT{:+}", -to_noon);
    let within = |every: &[&str], name: &str, ahead: Duration| {
        let words = [&["-v", "once", "--every"], every, &[name, "--", "echo", "ran"]].concat();
        let mut command = store.latchwork(&words);
        command.env("LATCHWORK_STORE", server.url());
        let clock = ServerClock::of_clients().unwrap();
        clock.step_forward(ahead).unwrap();
        clock.give_to(&mut command);
        Running::start(command).finish()
    };
    let run = |name: &str, ahead: Duration| within(&["1d", "--tz", &zone], name, ahead);
    let said = |done: &Finished| (done.code(), done.stdout.clone());
    let (ran, skipped, refused) =
        ((0, "ran\n".to_owned()), (0, String::new()), (78, String::new()));
    assert_eq!(said(&run("right first", Duration::ZERO)), ran);
    for (ahead, expected) in
        [(3 * HOUR, &refused), (24 * HOUR, &skipped), (7 * 24 * HOUR, &skipped)]
    {
        let wrong = run("right first", ahead);
        assert_eq!(said(&wrong), *expected, "{ahead:?} ahead: {wrong:?}");
        let right = run("right first", Duration::ZERO);
        assert_eq!(said(&right), skipped, "after {ahead:?}: {right:?}");
    }
    assert_eq!(said(&run("wrong first", 7 * 24 * HOUR)), ran);
    let right = run("wrong first", Duration::ZERO);
    assert_eq!(said(&right), skipped, "{right:?}");
    assert!(right.stderr.contains("next run possible in 1"), "about half a day: {right:?}");
    assert!(!right.stderr.contains("day"), "about half a day: {right:?}");
    // A short period, which the clock that is ahead believes to be over. All clocks here are in the middle of one.
    let middle = Duration::from_secs(600 + 300 - now.as_secs() % 600);
    let run = |ahead: Duration| within(&["10m"], "short", middle + ahead);
    assert_eq!(said(&run(Duration::ZERO)), ran);
    let wrong = run(Duration::from_secs(720));
    assert_eq!(said(&wrong), refused, "{wrong:?}");
    let right = run(Duration::ZERO);
    assert_eq!(said(&right), skipped, "{right:?}");
}
