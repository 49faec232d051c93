//! `latchwork elect`: one host of many leads.

#![allow(clippy::disallowed_methods, reason = "tests")]

mod common;

use common::{Running, Store};
use latchwork_services::{Data, Persistence, RedisOptions, RedisServer};
use rustix::process::Signal;

const LEAD: &str = "echo leads $LATCHWORK_TOKEN; exec sleep 300";

fn candidate(store: &Store, name: &str, options: &[&str]) -> Running {
    candidate_at(&store.url(), store, name, options)
}

fn candidate_at(url: &str, store: &Store, name: &str, options: &[&str]) -> Running {
    let words = [&["-v", "elect", "--candidate", name], options, &["x", "--", "sh", "-c", LEAD]];
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
fn a_leader_whose_store_stood_still_leads_again() {
    let stop = |server: &mut RedisServer| server.stop().unwrap();
    leads_again(&RedisOptions::new(), stop, |server| server.cont().unwrap());
}

#[test]
fn a_leader_whose_store_died_and_came_back_leads_again() {
    let options = RedisOptions::new().persistence(Persistence::EveryWrite);
    leads_again(&options, |server| server.kill(), |server| server.restart(Data::Kept).unwrap());
}
