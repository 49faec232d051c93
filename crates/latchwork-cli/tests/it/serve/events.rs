//! The stream of events.

use super::Service;
use super::client::{Address, Events};
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
}

/// A browser connects again with the number of the last event that it saw.
#[test]
fn a_restart_of_the_service_is_a_gap() {
    let service = Service::start(&[]);
    let mut events = Events::follow(&service.address, "/v1/events", &[]);
    service.hold("before", "{}");
    let id = events.until("granted")["id"].to_string();
    let service = service.restart(&[]);
    for name in ["first", "second", "third"] {
        service.hold(name, "{}");
    }
    let mut events = Events::follow(&service.address, "/v1/events", &[("Last-Event-ID", &id)]);
    events.until("reset");
    for name in ["first", "second", "third"] {
        assert_eq!(events.until("granted")["name"], name, "what is kept follows");
    }
}

#[test]
fn a_forced_release_tells_who_asked_for_it_and_why() {
    let dir = tempfile::tempdir().unwrap();
    let admin = Address::Unix(dir.path().join("http.sock"));
    let service =
        Service::start(&["--listen", &format!("unix:{}/http.sock", dir.path().display())]);
    let mut events = Events::follow(&service.address, "/v1/events", &[]);
    let hold = service.lock("x", r#"{"holder": "stuck", "ttl_ms": 60000}"#);
    let reason = r#"{"reason": "it hangs <b>since</b> noon"}"#;
    admin.ask("POST /v1/locks/x/force-release", &[], reason).is(200);
    let forced = events.until("forced");
    assert_eq!((&forced["name"], &forced["holder"]), (&"x".into(), &"stuck".into()));
    assert_eq!(forced["token"], hold.json()["token"]);
    assert_eq!(forced["why"], "it hangs <b>since</b> noon");
    assert_eq!(forced["forced_by"], admin.ask("GET /v1/whoami", &[], "").json()["name"]);
    assert_eq!(events.until("lost")["reason"], "forced");
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
