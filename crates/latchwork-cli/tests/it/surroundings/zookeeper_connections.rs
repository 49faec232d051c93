//! Many commands on one host, and a server that takes 60 connections from it.

use std::thread::sleep;
use std::time::Duration;

use latchwork_services::{ZooKeeperOptions, ZooKeeperServer};

use crate::common::{Running, Store};

/// H106: 64 commands that are started at once are admitted one after another, although the server
/// takes 60 connections from one host.
#[test]
fn h106_sixty_four_commands_are_admitted_in_turn() {
    let (store, server) = (Store::new(), ZooKeeperServer::start(&ZooKeeperOptions::as_installed()));
    let server = server.unwrap();
    let run = |_| {
        let mut command = store.latchwork(&["run", "--wait", "100s", "k", "--", "sleep", "0.1"]);
        command.env("LATCHWORK_STORE", server.url());
        Running::start(command)
    };
    let all: Vec<_> = (0..64).map(run).collect();
    for command in all {
        let ended = command.finish();
        assert_eq!(ended.code(), 0, "{}", ended.stderr);
    }
}

/// H106: a command that gets no connection within its `--wait` says which setting of the server it is.
#[test]
fn h106_a_server_without_a_connection_to_spare_is_named() {
    let options = ZooKeeperOptions::as_installed().setting("maxClientCnxns=1");
    let (store, server) = (Store::new(), ZooKeeperServer::start(&options).unwrap());
    let run = |args: &[&str]| {
        let mut command = store.latchwork(args);
        command.env("LATCHWORK_STORE", server.url());
        Running::start(command)
    };
    // Whatever its ttl, it needs one connection at a time.
    let holder = run(&["run", "--ttl", "10s", "k", "--", "sh", "-c", "echo runs; sleep 6"]);
    holder.stdout.until("runs");
    let refused = run(&["run", "--wait", "1s", "other", "--", "true"]).finish();
    assert_eq!(refused.code(), 69, "{}", refused.stderr);
    assert!(refused.stderr.contains("maxClientCnxns"), "{}", refused.stderr);
    // It waits for the connection as it would wait for the lock.
    let patient = run(&["run", "--wait", "60s", "other", "--", "true"]);
    sleep(Duration::from_secs(1));
    let patient = patient.finish();
    assert_eq!(patient.code(), 0, "{}", patient.stderr);
    assert_eq!(holder.finish().code(), 0);
}
