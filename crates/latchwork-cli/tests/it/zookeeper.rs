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

fn post(url: &str, body: &str) -> Value {
    let mut curl = std::process::Command::new("curl");
    curl.args(["-s", "-H", "content-type: application/json", "-d", body, url]);
    serde_json::from_slice(&curl.output().unwrap().stdout).unwrap()
}

/// H410: the servers as they are installed grant less than the service's usual ttl.
#[test]
fn h410_the_service_grants_every_ttl_of_its_range() {
    let (store, port) = (Store::new(), latchwork_services::Port::reserve().unwrap());
    let server = ZooKeeperServer::start(&ZooKeeperOptions::as_installed()).unwrap();
    let listen = format!("127.0.0.1:{}", port.number());
    let service = latchwork(&store, &server, &["serve", "--listen", &listen]);
    service.stderr.until("ready");
    let ask = |name: &str, body: &str| post(&format!("http://{listen}/v1/locks/{name}"), body);
    let usual = ask("usual", "{}");
    assert!(usual["hold"].is_string(), "{usual}");
    let refused = ask("x", r#"{"ttl_ms": 9999999}"#)["error"].as_str().unwrap().to_owned();
    let longest: u64 = refused.rsplit(' ').next().unwrap().parse().unwrap();
    let granted = ask("longest", &format!(r#"{{"ttl_ms": {longest}}}"#));
    assert_eq!(granted["ttl_ms"], longest, "{granted}");
    let refused = ask("y", &format!(r#"{{"ttl_ms": {}}}"#, longest + 1));
    assert!(refused["error"].as_str().unwrap().starts_with("ttl_ms: "), "{refused}");
}

/// H411: the servers write the paths of all nodes of a session into the transaction that ends it, and do not start again
/// if it is longer than they read.
#[test]
fn h411_a_dead_process_keeps_no_server_from_starting() {
    let options = ZooKeeperOptions::new();
    let (store, mut server) = (Store::new(), ZooKeeperServer::start(&options).unwrap());
    let port = latchwork_services::Port::reserve().unwrap();
    let listen = format!("127.0.0.1:{}", port.number());
    let mut service = latchwork(&store, &server, &["serve", "--listen", &listen]);
    service.stderr.until("ready");
    let names: Vec<_> = (0..40).map(|n| format!("{n:02}{}", "x".repeat(60_000))).collect();
    for name in &names {
        let body = format!(r#"{{"ttl_ms": 2500, "locks": [{{"name": "{name}"}}]}}"#);
        assert!(post(&format!("http://{listen}/v1/holds"), &body)["hold"].is_string());
    }
    service.child.kill().unwrap();
    service.wait();
    let next = ["run", "--wait", "30s", &names[0], "--", "true"];
    assert_eq!(latchwork(&store, &server, &next).finish().code(), 0);
    let next = ["run", "--wait", "30s", &names[39], "--", "true"];
    assert_eq!(latchwork(&store, &server, &next).finish().code(), 0);
    server.restart().unwrap();
    assert_eq!(
        latchwork(&store, &server, &["run", "--wait", "30s", "y", "--", "true"]).finish().code(),
        0
    );
}
