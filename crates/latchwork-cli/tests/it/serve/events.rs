//! The stream of events.

use rustix::process::Signal;
use serde_json::json;

use super::Service;
use super::client::{Address, Events};
use super::tickets::{Team, redis};
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

/// A client ends its session at another instance than that of its stream, and asks for a hold that it has released
/// elsewhere.
#[test]
fn h534_an_end_elsewhere_is_no_loss_in_the_events() {
    let server = redis();
    let team = Team::at(&server.url());
    let (one, two) = (team.instance(), team.instance());
    let mut events = Events::follow(&one.address, "/v1/events", &[]);
    let session = one.ask("POST /v1/sessions", r#"{"ttl_ms": 2000}"#).is(200).get("session");
    one.hold("a", &json!({ "session": session }).to_string());
    let path = format!("/v1/sessions/{session}/events");
    let mut stream = Events::follow(&one.address, &path, &[]);
    stream.until("kept");
    two.ask(&format!("DELETE /v1/sessions/{session}"), "").is(200);
    stream.until("ended");
    let hold = one.hold("b", r#"{"ttl_ms": 60000}"#);
    two.release(&hold).is(200);
    one.ask(&format!("GET /v1/holds/{hold}"), "").is(410).kind("Lost");
    let mut ends = vec!["a".to_owned(), "b".to_owned(), "latchwork-session/".to_owned()];
    while !ends.is_empty() {
        let (word, event) = events.next().unwrap();
        assert_ne!(word, "lost", "{event}");
        if word == "released" {
            let name = event["name"].as_str().unwrap();
            ends.retain(|end| !name.starts_with(end));
        }
    }
}

/// Each stream says that this instance stops, each request that another one is to be asked, and another one goes on.
#[test]
fn h536_a_stop_is_told_to_all_that_another_instance_can_serve() {
    let server = redis();
    let team = Team::at(&server.url());
    let (one, two) = (team.instance(), team.instance());
    let session = one.ask("POST /v1/sessions", r#"{"ttl_ms": 60000}"#).is(200).get("session");
    let path = format!("/v1/sessions/{session}/events?bound=true");
    let paths = ["/v1/events", "/v1/events?prefix=other", &*path, &*path];
    let mut streams = paths.map(|path| Events::follow(&one.address, path, &[]));
    let hold = one.hold("x", r#"{"ttl_ms": 60000}"#);
    let waiting = one.wait_for("x", &[], r#"{"ttl_ms": 5000, "wait_ms": 60000}"#);
    one.process.signal(Signal::TERM);
    for stream in &mut streams {
        stream.until("closing");
        while stream.next().is_some() {}
    }
    let refused = waiting.answer();
    refused.is(503).kind("Closed");
    let step = refused.get("next_step");
    assert!(step.starts_with("repeat this request at another instance"), "{step}");
    // It holds nothing that is valid for some time.
    assert!(!step.contains("valid_for_ms"), "{step}");
    assert!(refused.head.to_lowercase().contains("retry-after: 1"), "{refused:?}");
    let Service { process, .. } = one;
    assert_eq!(process.finish().code(), 0);
    two.renew(&hold).is(200);
    two.ask(&format!("POST /v1/sessions/{session}/renew"), "").is(200);
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
