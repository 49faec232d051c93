//! The stream of events.

use super::Service;
use super::client::Events;
use crate::common::Running;

#[test]
fn events_tell_the_life_of_a_lock() {
    let service = Service::start(&[]);
    let mut events = Events::follow(&service.address, "/v1/events", &[]);
    let first = service.lock("x", r#"{"holder": "first", "ttl_ms": 5000}"#);
    let granted = events.until("granted");
    assert_eq!((&granted["name"], &granted["holder"]), (&"x".into(), &"first".into()));
    assert_eq!(granted["token"], first.json()["token"]);
    let waiting = service.wait_for("x", &[], r#"{"wait_ms": 15000, "ttl_ms": 1000}"#);
    assert_eq!(events.until("waiting")["name"], "x");
    service.release(&first.get("hold")).is(200);
    assert_eq!(events.until("released")["token"], first.json()["token"]);
    let second = waiting.answer();
    assert_eq!(events.until("granted")["token"], second.json()["token"]);
    let lost = events.until("lost");
    assert_eq!((&lost["token"], &lost["reason"]), (&second.json()["token"], &"not_renewed".into()));
}

#[test]
fn a_listener_goes_on_where_it_was() {
    let service = Service::start(&[]);
    let mut events = Events::follow(&service.address, "/v1/events?prefix=a", &[]);
    events.until("hello");
    service.hold("b", "{}");
    service.hold("a1", "{}");
    let seen = events.until("granted");
    assert_eq!(seen["name"], "a1", "of another prefix");
    service.hold("a2", "{}");
    let id = seen["id"].to_string();
    let mut again = Events::follow(&service.address, "/v1/events", &[("Last-Event-ID", &id)]);
    assert_eq!(again.until("granted")["name"], "a2");
    let mut of_another_start = Events::follow(&service.address, "/v1/events?after=9999", &[]);
    of_another_start.until("reset");
}

#[test]
fn events_tell_of_locks_that_others_hold() {
    let service = Service::start(&[]);
    let mut events = Events::follow(&service.address, "/v1/events", &[]);
    events.until("hello");
    // A change is reported only after the first look.
    let other =
        Running::start(service.store.latchwork(&["run", "warm", "--", "sh", "-c", "echo on; cat"]));
    other.stdout.next();
    std::thread::sleep(std::time::Duration::from_secs(3));
    let run = Running::start(service.store.latchwork(&[
        "run",
        "x",
        "--",
        "sh",
        "-c",
        "echo on; sleep 4",
    ]));
    run.stdout.next();
    loop {
        let granted = events.until("granted");
        if granted["name"] == "x" {
            assert_eq!(granted["by"], "store");
            break;
        }
    }
    loop {
        let released = events.until("released");
        if released["name"] == "x" {
            assert_eq!(released["by"], "store");
            break;
        }
    }
}
