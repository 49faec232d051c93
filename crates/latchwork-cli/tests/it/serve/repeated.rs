//! Requests that are repeated: the same `Idempotency-Key` is the same claim.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::client::AT_ONCE;
use super::{Answer, Service};
use crate::common::eventually;

const KEY: &[(&str, &str)] = &[("Idempotency-Key", "6f1c")];

fn lock(service: &Service, headers: &[(&str, &str)], body: &str) -> Answer {
    service.address.ask("POST /v1/locks/x", headers, body)
}

#[test]
fn h157_the_same_key_is_the_same_claim() {
    let service = Service::start(&[]);
    let body = r#"{"ttl_ms": 5000}"#;
    let first = lock(&service, KEY, body);
    // As if its answer had been lost.
    let again = lock(&service, KEY, body);
    for field in ["hold", "token"] {
        assert_eq!(first.is(200).get(field), again.is(200).get(field));
    }
    // It is no renewal.
    assert!(again.number("valid_for_ms") <= 5001, "{again:?}");
    lock(&service, &[("Idempotency-Key", "other")], body).is(409).kind("TimedOut");
    let another = lock(&service, KEY, r#"{"ttl_ms": 6000}"#);
    another.is(422).kind("Mismatch");
    another.step("use a new key for each claim, and the same body when you repeat one");
    service.release(&first.get("hold")).is(200);
    // A late copy takes nothing.
    lock(&service, KEY, body).is(410).kind("Released");
    assert!(!service.is_held("x"));
}

#[test]
fn a_repeated_request_joins_the_one_that_waits() {
    let service = Service::start(&[]);
    let hold = service.hold("x", "{}");
    let body = r#"{"wait_ms": 60000}"#;
    let first = service.wait_for("x", KEY, body);
    let second = service.address.send("POST /v1/locks/x", KEY, body);
    sleep(Duration::from_millis(300));
    assert_eq!(service.waiters("x"), 1, "a second claim");
    // One of two that wait is cut: the claim goes on.
    drop(first);
    sleep(Duration::from_millis(300));
    assert_eq!(service.waiters("x"), 1, "withdrawn, though the other one waits");
    service.release(&hold).is(200);
    let answer = super::client::read(second).unwrap();
    assert_eq!(answer.is(200).get("hold"), lock(&service, KEY, body).get("hold"));
}

/// A client with a deadline waits for less each time.
#[test]
fn a_repeated_request_may_wait_for_less() {
    let service = Service::start(&[]);
    let hold = service.hold("x", "{}");
    let first = service.wait_for("x", KEY, r#"{"wait_ms": 60000}"#);
    let start = Instant::now();
    let refused = lock(&service, KEY, r#"{"wait_ms": 300}"#);
    refused.is(409).kind("TimedOut");
    assert!(start.elapsed() >= Duration::from_millis(300) && start.elapsed() < AT_ONCE);
    assert_eq!(refused.json()["lock"]["held"], true, "{refused:?}");
    assert_eq!(service.waiters("x"), 1, "it withdrew the claim of the first request");
    let second = service.address.send("POST /v1/locks/x", KEY, r#"{"wait_ms": 20000}"#);
    service.release(&hold).is(200);
    let granted = first.answer().is(200).get("hold");
    assert_eq!(super::client::read(second).unwrap().is(200).get("hold"), granted);
    assert_eq!(lock(&service, KEY, "{}").is(200).get("hold"), granted);
}

#[test]
fn the_last_cut_request_withdraws_the_claim() {
    let service = Service::start(&[]);
    let hold = service.hold("x", "{}");
    let body = r#"{"wait_ms": 60000}"#;
    drop(service.wait_for("x", KEY, body));
    eventually("no waiter", || (service.waiters("x") == 0).then_some(()));
    service.release(&hold).is(200);
    // The key is free for another try.
    lock(&service, KEY, body).is(200);
}

#[test]
fn a_key_that_was_not_granted_may_try_again() {
    let service = Service::start(&[]);
    let hold = service.hold("x", "{}");
    lock(&service, KEY, "{}").is(409).kind("TimedOut");
    service.release(&hold).is(200);
    lock(&service, KEY, "{}").is(200);
    for bad in ["", "\u{e9}"] {
        lock(&service, &[("Idempotency-Key", bad)], "{}").is(400).kind("Invalid");
    }
}
