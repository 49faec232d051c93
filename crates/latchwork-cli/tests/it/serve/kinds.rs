//! All kinds of locks over HTTP.

use serde_json::Value;

use super::Service;
use super::client::Events;

#[test]
fn readers_share_and_writers_exclude() {
    let service = Service::start(&[]);
    let one = service.hold("x", r#"{"mode": "read"}"#);
    let two = service.hold("x", r#"{"mode": "read"}"#);
    service.lock("x", r#"{"mode": "write"}"#).is(409).kind("TimedOut");
    service.lock("x", "{}").is(409).kind("Mismatch");
    service.release(&one).is(200);
    service.release(&two).is(200);
    service.lock("x", r#"{"mode": "write"}"#).is(200);
    service.lock("x", r#"{"mode": "read"}"#).is(409);
}

#[test]
fn permits_are_limited() {
    let service = Service::start(&[]);
    let take =
        |take: u32| format!(r#"{{"mode": "permits", "permits": {{"take": {take}, "of": 3}}}}"#);
    service.hold("x", &take(2));
    service.lock("x", &take(2)).is(409).kind("TimedOut");
    service.hold("x", &take(1));
    service.lock("x", &take(4)).is(400).kind("Invalid");
    service.lock("y", r#"{"mode": "permits"}"#).is(400).kind("Invalid");
    service.lock("y", r#"{"permits": {"take": 1, "of": 2}}"#).is(400).kind("Invalid");
    service
        .lock("x", r#"{"mode": "permits", "permits": {"take": 1, "of": 4}}"#)
        .is(409)
        .kind("Mismatch");
}

#[test]
fn several_locks_are_taken_all_or_none() {
    let service = Service::start(&[]);
    let wish = r#"{"locks": [{"name": "b"}, {"name": "a"}, {"name": "c", "mode": "read"}]}"#;
    let b = service.hold("b", "{}");
    let refused = service.ask("POST /v1/holds", wish);
    refused.is(409).kind("TimedOut");
    assert_eq!(refused.get("key"), "b");
    assert!(!service.is_held("a") && !service.is_held("c"));
    service.release(&b).is(200);
    let all = service.ask("POST /v1/holds", wish);
    let json = all.is(200).json();
    let names: Vec<_> = json["locks"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["a", "b", "c"]);
    service.renew(&all.get("hold")).is(200);
    service.release(&all.get("hold")).is(200);
    assert!(!service.is_held("a") && !service.is_held("b") && !service.is_held("c"));
    service.ask("POST /v1/holds", r#"{"locks": []}"#).is(400);
    service.ask("POST /v1/holds", r#"{"locks": [{"name": "a"}, {"name": "a"}]}"#).is(400);
}

#[test]
fn a_task_runs_once_in_its_period() {
    let service = Service::start(&[]);
    let begin = || service.ask("POST /v1/once/report", r#"{"every": "1d", "tz": "Europe/Berlin"}"#);
    let first = begin();
    assert_eq!(first.is(200).get("outcome"), "begun");
    let hold = first.json()["hold"]["hold"].as_str().unwrap().to_owned();
    assert_eq!(begin().is(200).get("outcome"), "running");
    // It failed: it is open for others.
    service.release(&hold).is(200);
    let hold = begin().is(200).json()["hold"]["hold"].as_str().unwrap().to_owned();
    service.ask(&format!("POST /v1/holds/{hold}/succeed"), "").is(200);
    let done = begin();
    assert_eq!(done.is(200).get("outcome"), "done");
    assert!(done.number("left_ms") > 0);
    service.ask("POST /v1/once/report", r#"{"every": "soon"}"#).is(400).kind("Invalid");
    let lock = service.hold("x", "{}");
    service.ask(&format!("POST /v1/holds/{lock}/succeed"), "").is(400).kind("Invalid");
}

#[test]
fn a_leader_is_elected_and_followed() {
    let service = Service::start(&[]);
    let mut events = Events::follow(&service.address, "/v1/elections/e/events", &[]);
    assert_eq!(events.until("leader")["candidate"], Value::Null);
    let campaign = |body| service.ask("POST /v1/elections/e/campaign", body);
    let first = campaign(r#"{"candidate": "10.0.0.1:80"}"#);
    let leader = events.until("leader");
    assert_eq!(leader["candidate"], "10.0.0.1:80");
    assert_eq!(leader["term"], first.is(200).json()["token"]);
    campaign(r#"{"candidate": "10.0.0.2:80"}"#).is(409).kind("TimedOut");
    service.release(&first.get("hold")).is(200);
    campaign(r#"{"candidate": "10.0.0.2:80"}"#).is(200);
    let seen = service.ask("GET /v1/elections/e", "");
    assert_eq!(seen.is(200).get("candidate"), "10.0.0.2:80");
}
