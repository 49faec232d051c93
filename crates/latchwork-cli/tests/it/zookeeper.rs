//! The command on ZooKeeper.

#![allow(clippy::disallowed_methods, reason = "tests")]

use crate::common::{Running, Store};
use latchwork_services::{ZooKeeperOptions, ZooKeeperServer};
use serde_json::Value;

fn latchwork(store: &Store, server: &ZooKeeperServer, args: &[&str]) -> Running {
    let mut command = store.latchwork(args);
    command.env("LATCHWORK_STORE", format!("{}/app", server.url()));
    Running::start(command)
}

fn server() -> ZooKeeperServer {
    ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap()
}

#[test]
fn runs_shows_lists_and_takes_away() {
    let (store, server) = (Store::new(), server());
    let run = latchwork(&store, &server, &["run", "a/b", "--", "sh", "-c", "echo runs; sleep 60"]);
    run.stdout.until("runs");
    let json = latchwork(&store, &server, &["--json", "show", "a/b"]).finish().stdout;
    let shown: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(shown["held"], true, "{json}");
    let notes = shown["notes"].as_array().unwrap();
    assert!(notes.iter().any(|n| n.as_str().unwrap().contains("/app/a%2Fb")), "{json}");
    let list = latchwork(&store, &server, &["ls"]).finish().stdout;
    assert!(list.contains("a/b"), "{list}");
    let other = latchwork(&store, &server, &["run", "a/b", "--wait", "0", "--", "true"]);
    assert_eq!(other.finish().code(), 75);
    let force = latchwork(&store, &server, &["release", "a/b", "--force"]).finish();
    assert_eq!(force.code(), 0);
    assert_eq!(run.finish().code(), 73, "the command is ended when its lock was taken away");
    let list = latchwork(&store, &server, &["ls"]).finish().stdout;
    assert!(!list.contains("a/b"), "{list}");
}

#[test]
fn doctor_and_init_know_it() {
    let (store, server) = (Store::new(), server());
    let report = latchwork(&store, &server, &["doctor"]).finish();
    assert_eq!(report.code(), 0, "{}", report.stdout);
    assert!(report.stdout.contains("ZooKeeper 3."), "{}", report.stdout);
    assert_eq!(latchwork(&store, &server, &["init"]).finish().code(), 0);
}
