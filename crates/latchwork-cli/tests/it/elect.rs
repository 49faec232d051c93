//! `latchwork elect`: one host of many leads.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::os::unix::process::ExitStatusExt;

use crate::common::{Running, Store};
use latchwork_services::{Data, Persistence, RedisOptions, RedisServer};
use rustix::process::Signal;

const LEAD: &str = "echo leads $LATCHWORK_TOKEN; exec sleep 300";

fn candidate(store: &Store, name: &str, options: &[&str]) -> Running {
    candidate_at(&store.url(), store, name, options)
}

fn candidate_at(url: &str, store: &Store, name: &str, options: &[&str]) -> Running {
    leader_at(url, store, name, options, LEAD)
}

fn leader_at(url: &str, store: &Store, name: &str, options: &[&str], script: &str) -> Running {
    let words = [&["-v", "elect", "--candidate", name], options, &["x", "--", "sh", "-c", script]];
    let mut command = store.latchwork(&words.concat());
    command.env("LATCHWORK_STORE", url);
    Running::start(command)
}

fn term(leader: &Running) -> u64 {
    leader.stdout.until("leads ").trim_start_matches("leads ").parse().unwrap()
}

#[test]
fn the_next_candidate_follows_a_leader_that_is_killed() {
    let store = Store::new();
    let observer = Running::start(store.latchwork(&["elect", "--observe", "x"]));
    assert_eq!(observer.stdout.next().as_deref(), Some("x: nobody leads"));
    let first = candidate(&store, "one", &[]);
    let first_term = term(&first);
    assert_eq!(observer.stdout.next(), Some(format!("x: one leads, term {first_term}")));
    let second = candidate(&store, "two", &[]);
    second.stderr.until("waiting for \"x\", held by one");
    first.signal(Signal::KILL);
    let second_term = term(&second);
    assert!(second_term > first_term);
    observer.stdout.until(&format!("x: two leads, term {second_term}"));
}

/// Terms shorter than the pause of an observer that only asks once a second.
#[test]
fn an_observer_sees_terms_of_half_a_second() {
    let store = Store::new();
    // Until there is a directory, an observer has nothing to watch.
    assert_eq!(store.output(&["run", "x", "--", "true"]).code(), 0);
    let observer = Running::start(store.latchwork(&["elect", "--observe", "x"]));
    assert_eq!(observer.stdout.next().as_deref(), Some("x: nobody leads"));
    for _ in 0..5 {
        let words = ["elect", "--candidate", "one", "x", "--", "sleep", "0.5"];
        assert_eq!(store.output(&words).code(), 0);
        let leads = observer.stdout.next().unwrap();
        assert!(leads.starts_with("x: one leads, term "), "{leads}");
        assert_eq!(observer.stdout.next().as_deref(), Some("x: nobody leads"));
    }
}

#[test]
fn a_leader_that_is_deposed_campaigns_again() {
    let store = Store::new();
    let leader = candidate(&store, "one", &["--ttl", "2s"]);
    let first = term(&leader);
    assert_eq!(store.output(&["release", "x", "--force"]).code(), 0);
    let second = term(&leader);
    assert!(second > first);
    leader.signal(Signal::TERM);
    assert_eq!(leader.finish().code(), 128 + 15);
}

#[test]
fn one_term_may_be_enough() {
    let store = Store::new();
    let leader = candidate(&store, "one", &["--ttl", "2s", "--one-term"]);
    term(&leader);
    assert_eq!(store.output(&["release", "x", "--force"]).code(), 0);
    assert_eq!(leader.finish().code(), 73);
}

#[test]
fn a_command_that_ends_resigns() {
    let store = Store::new();
    // 73 is what latchwork says of a lost lock; here it is the command's own.
    for code in [7, 0, 73] {
        let done = store.output(&["elect", "x", "--", "sh", "-c", &format!("exit {code}")]);
        assert_eq!(done.code(), code, "{done:?}");
    }
    let seen = store.output(&["show", "x"]);
    assert!(seen.stdout.starts_with("x: free"), "{seen:?}");
}

/// The server is away for longer than a ttl, and comes back.
fn leads_again(
    options: &RedisOptions,
    go: impl FnOnce(&mut RedisServer),
    come: impl FnOnce(&mut RedisServer),
) {
    let (store, mut server) = (Store::new(), RedisServer::start(options).unwrap());
    let mut leader = candidate_at(&server.url(), &store, "one", &["--ttl", "2s"]);
    let first = term(&leader);
    go(&mut server);
    leader.stderr.until("lost \"x\"");
    // The second one: the first was as long as a ttl.
    leader.stderr.until("cannot campaign");
    leader.stderr.until("cannot campaign");
    assert!(leader.child.try_wait().unwrap().is_none(), "it goes on");
    come(&mut server);
    assert!(term(&leader) > first);
    leader.signal(Signal::TERM);
    assert_eq!(leader.finish().code(), 128 + 15);
}

#[test]
fn a_leader_leads_again_after_a_store_stall() {
    let stop = |server: &mut RedisServer| server.stop().unwrap();
    leads_again(&RedisOptions::new(), stop, |server| server.cont().unwrap());
}

#[test]
fn a_leader_leads_again_after_a_store_restart() {
    let options = RedisOptions::new().persistence(Persistence::EveryWrite);
    leads_again(&options, |server| server.kill(), |server| server.restart(Data::Kept).unwrap());
}

/// Says `asked` when it is asked to end, and does not.
const STUBBORN: &str = "trap 'echo asked' TERM; echo leads $LATCHWORK_TOKEN; \
     while :; do sleep 0.01; done";

fn stubborn(store: &Store) -> Running {
    let leader = leader_at(&store.url(), store, "one", &["--ttl", "2s"], STUBBORN);
    term(&leader);
    leader
}

/// The signal went to latchwork, whose end it is, and no other term begins.
fn is_ended_by(leader: Running, signal: Signal) {
    let done = leader.finish();
    assert_eq!(done.status.signal(), Some(signal.as_raw()), "{done:?}");
    assert!(done.stderr.contains("lost \"x\""), "{done:?}");
    assert!(!done.stdout.contains("leads"), "{done:?}");
}

#[test]
fn a_signal_in_the_grace_after_a_loss_ends_all_of_it() {
    for signal in [Signal::TERM, Signal::HUP] {
        let store = Store::new();
        let leader = stubborn(&store);
        assert_eq!(store.output(&["release", "x", "--force"]).code(), 0);
        leader.stdout.until("asked");
        leader.signal(signal);
        is_ended_by(leader, signal);
    }
}

#[test]
fn an_unheeded_signal_ends_the_group_at_the_loss() {
    let store = Store::new();
    let leader = stubborn(&store);
    leader.signal(Signal::TERM);
    leader.stdout.until("asked");
    assert_eq!(store.output(&["release", "x", "--force"]).code(), 0);
    is_ended_by(leader, Signal::TERM);
}

#[test]
fn a_handled_sighup_does_not_end_the_run() {
    let store = Store::new();
    let script = "trap 'echo read again' HUP; echo leads $LATCHWORK_TOKEN; \
         while :; do sleep 0.01; done";
    let leader = leader_at(&store.url(), &store, "one", &["--ttl", "2s"], script);
    let first = term(&leader);
    leader.signal(Signal::HUP);
    leader.stdout.until("read again");
    assert_eq!(store.output(&["release", "x", "--force"]).code(), 0);
    assert!(term(&leader) > first);
}

/// What would end or stop it before its first term does so before a later one.
#[test]
fn signals_end_a_candidate_that_campaigns_again() {
    for signal in [Signal::QUIT, Signal::ALARM, Signal::TERM] {
        let store = Store::new();
        let leader = candidate(&store, "one", &["--ttl", "2s"]);
        term(&leader);
        let second = candidate(&store, "two", &[]);
        second.stderr.until("waiting for");
        assert_eq!(store.output(&["release", "x", "--force"]).code(), 0);
        term(&second);
        leader.stderr.until("waiting for");
        leader.signal(signal);
        let done = leader.finish();
        assert_eq!(done.status.signal(), Some(signal.as_raw()), "{done:?}");
    }
}

#[test]
fn an_observer_continues_after_an_outage() {
    let (store, mut server) = (Store::new(), RedisServer::start(&RedisOptions::new()).unwrap());
    let mut command = store.latchwork(&["elect", "--observe", "x"]);
    command.env("LATCHWORK_STORE", server.url());
    let observer = Running::start(command);
    assert_eq!(observer.stdout.next().as_deref(), Some("x: nobody leads"));
    server.stop().unwrap();
    observer.stderr.until("cannot read the leader");
    server.cont().unwrap();
    let leader = candidate_at(&server.url(), &store, "one", &[]);
    let term = term(&leader);
    // That nobody leads was told before.
    assert_eq!(observer.stdout.next(), Some(format!("x: one leads, term {term}")));
}

#[test]
fn an_unread_observer_ends() {
    let store = Store::new();
    let mut command = store.latchwork(&["elect", "--observe", "x"]);
    command.stderr(std::process::Stdio::null());
    let mut observer = command.spawn().unwrap();
    let mut line = [0; 16];
    let mut stdout = observer.stdout.take().unwrap();
    std::io::Read::read_exact(&mut stdout, &mut line).unwrap();
    assert_eq!(&line, b"x: nobody leads\n");
    drop(stdout);
    // Although nothing changes that it would have to write.
    let status = crate::common::eventually("its end", || observer.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
}
