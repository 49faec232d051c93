//! A stopped client is a second holder, and a resource in etcd refuses it by the token.
//!
//! The test starts this program again; the test named `child` plays the holder that is stopped.

#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "tests")]

use std::io::Write;
use std::process::{Command, Stdio};

use crate::common::*;
use latchwork::HoldState;
use latchwork_etcd::{Place, fence_text};
use latchwork_services::child::{Process, hear, role, say};
use latchwork_services::{EtcdOptions, EtcdServer, etcdctl};
use latchwork_store::FencingToken;

/// Runs a transaction: its compare, and what it puts then. Tells whether it did.
fn transaction(port: u16, compare: &str, puts: &[(&str, &str)]) -> bool {
    let puts: String = puts.iter().map(|(key, value)| format!("put {key} {value}\n")).collect();
    let mut child = Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .args([&format!("--endpoints=127.0.0.1:{port}"), "txn"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("etcdctl is installed");
    let text = format!("{compare}\n\n{puts}\n\n");
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !said.is_empty(), "{output:?}");
    said.contains("SUCCESS")
}

/// Writes if the lock is still held by this place.
fn write_as_holder(port: u16, place: &Place, value: &str) -> bool {
    let key = String::from_utf8(place.key.clone()).unwrap();
    let compare = format!("create(\"{key}\") = \"{}\"", place.create_revision);
    transaction(port, &compare, &[("stock", value)])
}

/// Writes if no larger token has written.
fn write_with_token(port: u16, token: FencingToken, value: &str) -> bool {
    let above = FencingToken::from_raw(token.get() + 1);
    let compare = format!("value(\"stock-token\") < \"{}\"", fence_text(above));
    transaction(port, &compare, &[("stock-token", &fence_text(token)), ("stock", value)])
}

fn stock(port: u16) -> String {
    etcdctl(port, &["get", "stock", "--print-value-only"]).unwrap()
}

/// Plays the holder in the other test; on its own it has nothing to do.
#[test]
fn child() {
    let Some((_, port)) = role() else { return };
    let port: u16 = port.parse().unwrap();
    run(async {
        let client = bare(&format!("etcd://127.0.0.1:{port}")).await;
        let guard = client.locks().mutex("k").ttl(2 * SEC).acquire().await.unwrap();
        let place = client.place(guard.token()).unwrap();
        guard.ensure_held().unwrap();
        say(guard.token());
        // Here it is stopped, and goes on as if no time had passed.
        hear();
        etcdctl(port, &["put", "stock", "late"]).unwrap();
        say(write_as_holder(port, &place, "later"));
        say(write_with_token(port, guard.token(), "latest"));
        say(matches!(guard.state(), HoldState::Lost(_)));
    });
}

#[test]
fn h01_the_token_refuses_a_stopped_clients_write() {
    let server = EtcdServer::start(&EtcdOptions::new()).unwrap();
    let port = server.port();
    etcdctl(port, &["put", "stock-token", &fence_text(FencingToken::from_raw(0))]).unwrap();
    let mut stopped = Process::start("fence::hold", &port.to_string());
    let first: FencingToken = stopped.line().parse().unwrap();
    stopped.stop();
    run(async {
        let client = bare(&server.url()).await;
        let guard = client.locks().mutex("k").acquire_within(30 * SEC).await.unwrap();
        assert!(guard.token() > first);
        let place = client.place(guard.token()).unwrap();
        assert!(write_as_holder(port, &place, "7"), "whoever holds it may write");
        assert!(write_with_token(port, guard.token(), "6"));
        stopped.cont();
        stopped.tell("go on");
        // Without a check it has written as if it were the holder, beside the one that is.
        assert_eq!(stopped.line(), "false", "its place is gone");
        assert_eq!(stock(port), "late");
        assert_eq!(stopped.line(), "false", "its token is smaller");
        assert_eq!(stopped.line(), "true", "its first look says lost");
        guard.ensure_held().unwrap();
        assert!(write_with_token(port, guard.token(), "5"), "the same token writes again");
        assert_eq!(stock(port), "5");
        guard.release().await.unwrap();
        assert!(!write_as_holder(port, &place, "4"), "nor after its release");
        assert_eq!(client.place(FencingToken::from_grant(place.create_revision as u64)), None);
    });
}

/// A number that no store gives writes nothing, and shuts no token out.
#[test]
fn h233_a_number_that_is_no_token_writes_nothing() {
    let server = EtcdServer::start(&EtcdOptions::new()).unwrap();
    let port = server.port();
    let (none, last) = (FencingToken::from_raw(0), FencingToken::from_raw(i64::MAX as u64));
    etcdctl(port, &["put", "stock-token", &fence_text(none)]).unwrap();
    for raw in [1 << 63, (1 << 63) + 1, 10_000_000_000_000_000_000, u64::MAX - 1] {
        let above = fence_text(FencingToken::from_raw(raw + 1));
        let compare = format!("value(\"stock-token\") < \"{above}\"");
        assert!(!transaction(port, &compare, &[("stock", "9")]), "{raw}");
    }
    assert!(write_with_token(port, FencingToken::from_grant(7), "8"));
    assert!(write_with_token(port, last, "7"));
    assert!(!write_with_token(port, FencingToken::from_grant(8), "6"));
    assert_eq!(stock(port), "7");
}
