//! All kinds of locks over HTTP.

use serde_json::{Value, json};

use super::Service;
use super::client::{Address, Events, Kept};
use crate::common::eventually;

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
fn a_read_hold_becomes_a_write_hold_and_back() {
    let service = Service::start(&[]);
    let read = r#"{"mode": "read"}"#;
    let hold = service.lock("x", read).is(200).clone();
    let (id, first) = (hold.get("hold"), hold.get("token").parse::<u64>().unwrap());
    let ask = |id: &str, verb: &str| service.ask(&format!("POST /v1/holds/{id}/{verb}"), "");
    let upgraded = ask(&id, "upgrade");
    assert_ne!(upgraded.is(200).get("hold"), id);
    let second = upgraded.get("token").parse::<u64>().unwrap();
    assert!(second > first);
    assert_eq!(upgraded.json()["locks"][0]["token"], upgraded.get("token"));
    // As if its answer had been lost.
    for field in ["hold", "token"] {
        assert_eq!(ask(&id, "upgrade").is(200).get(field), upgraded.get(field));
    }
    service.renew(&id).is(410).kind("Released");
    service.lock("x", read).is(409).kind("TimedOut");
    let id = upgraded.get("hold");
    assert_eq!(service.renew(&id).is(200).get("token"), upgraded.get("token"));
    assert_eq!(ask(&id, "upgrade").is(200).get("token"), upgraded.get("token"));
    let downgraded = ask(&id, "downgrade");
    assert!(downgraded.is(200).get("token").parse::<u64>().unwrap() > second);
    assert_eq!(ask(&id, "downgrade").is(200).get("token"), downgraded.get("token"));
    let id = downgraded.get("hold");
    let other = service.hold("x", read);
    ask(&id, "upgrade").is(409).kind("TimedOut");
    service.renew(&id).is(200);
    service.release(&other).is(200);
    let id = ask(&id, "upgrade").is(200).get("hold");
    service.release(&id).is(200);
    ask(&id, "upgrade").is(410).kind("Released");
    assert!(!service.is_held("x"));
}

#[test]
fn the_second_reader_that_upgrades_is_refused() {
    let service = Service::start(&[]);
    let read = |holder: &str| format!(r#"{{"mode": "read", "holder": "{holder}"}}"#);
    let (one, two) = (service.hold("x", &read("one")), service.hold("x", &read("two")));
    let path = |id: &str| format!("POST /v1/holds/{id}/upgrade");
    let body = r#"{"wait_ms": 10000}"#;
    let mut waiting = service.address.send(&path(&one), &[], body);
    eventually("the upgrade waits", || (service.waiters("x") == 1).then_some(()));
    let refused = service.ask(&path(&two), body);
    refused.is(409).kind("UpgradeConflict");
    refused.step("release this hold, then acquire the lock for writing");
    assert_eq!(refused.get("error"), "one is upgrading its hold, and waits for this one");
    assert_eq!(refused.json()["lock"]["holders"].as_array().unwrap().len(), 2);
    service.lock("x", &read("three")).is(409).kind("TimedOut");
    // A cut connection withdraws it: readers are admitted again.
    drop(waiting);
    eventually("it is withdrawn", || (service.waiters("x") == 0).then_some(()));
    service.renew(&one).is(200);
    waiting = service.address.send(&path(&one), &[], body);
    eventually("the upgrade waits", || (service.waiters("x") == 1).then_some(()));
    service.release(&two).is(200);
    let upgraded = super::client::read(waiting).unwrap();
    service.release(&one).is(410).kind("Released");
    service.release(&upgraded.is(200).get("hold")).is(200);
    assert!(!service.is_held("x"));
}

#[test]
fn only_a_reader_is_upgraded_and_only_a_writer_downgraded() {
    let service = Service::start(&[]);
    let mutex = service.hold("m", "{}");
    let several = service
        .ask("POST /v1/holds", r#"{"locks": [{"name": "a", "mode": "read"}, {"name": "b"}]}"#);
    for (hold, verb, mode) in [
        (mutex.clone(), "upgrade", "read"),
        (mutex, "downgrade", "write"),
        (several.is(200).get("hold"), "upgrade", "read"),
    ] {
        let refused = service.ask(&format!("POST /v1/holds/{hold}/{verb}"), "");
        refused.is(400).kind("Invalid");
        refused.step(&format!("{verb} only a lock that was acquired with the mode {mode}"));
        service.renew(&hold).is(200);
    }
    let reader = service.hold("x", r#"{"mode": "read", "ttl_ms": 1000}"#);
    let path = format!("POST /v1/holds/{reader}/upgrade");
    service.ask(&path, r#"{"wait_ms": 20001}"#).is(400).kind("Invalid");
    service.ask(&path, r#"{"wait": 1}"#).is(400).kind("Invalid");
    service.ask("POST /v1/holds/0/upgrade", "").is(404).kind("NotFound");
    // The open request keeps the hold, for longer than its ttl, and the client goes on with it.
    let _other = service.hold("x", r#"{"mode": "read", "ttl_ms": 60000}"#);
    service.ask(&path, r#"{"wait_ms": 3000}"#).is(409).kind("TimedOut");
    service.renew(&reader).is(200);
    eventually("nobody waits", || (service.waiters("x") == 0).then_some(()));
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

/// A client says whose limit counts, and an administrator sets it; nobody is evicted.
#[test]
fn the_limit_of_permits_changes_while_they_are_held() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("http.sock");
    let service = Service::start(&["--listen", &format!("unix:{}", socket.display())]);
    let admin = Address::Unix(socket);
    let resize = |body: &str| admin.ask("POST /v1/locks/x/resize", &[], body);
    let take = |take: u32, of: u32, resize: &str| {
        format!(
            r#"{{"mode": "permits", "permits": {{"take": {take}, "of": {of}}}, "resize": "{resize}"}}"#
        )
    };
    let old = service.hold("x", &take(3, 3, "to-mine"));
    service.lock("x", &take(1, 3, "to-mine")).is(409).kind("TimedOut");
    let new = service.hold("x", &take(2, 5, "to-mine"));
    service.lock("x", &take(1, 9, "follow")).is(409).kind("TimedOut");
    service.lock("x", &take(1, 3, "never")).is(409).kind("Mismatch");
    service.ask("POST /v1/locks/x/resize", r#"{"limit": 6}"#).is(403).kind("Forbidden");
    let raised = resize(r#"{"limit": 6}"#);
    let json = raised.is(200).json();
    assert_eq!((&json["from"], &json["to"], &json["held"]), (&5.into(), &6.into(), &5.into()));
    let third = service.hold("x", &take(1, 9, "follow"));
    admin.ask("POST /v1/lock/resize?name=x", &[], r#"{"limit": 1}"#).is(200);
    service.lock("x", &take(1, 9, "follow")).is(409).kind("TimedOut");
    for hold in [&old, &new, &third] {
        service.renew(hold).is(200);
        service.release(hold).is(200);
    }
    let unused = resize(r#"{"limit": 6}"#);
    assert_eq!(unused.is(200).json()["resized"], false);
    resize(r#"{"limit": 0}"#).is(400).kind("Invalid");
    resize("{}").is(400).kind("Invalid");
    service.lock("x", r#"{"resize": "follow"}"#).is(400).kind("Invalid");
    let mutex = service.hold("x", "{}");
    resize(r#"{"limit": 6}"#).is(409).kind("Mismatch");
    service.renew(&mutex).is(200);
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

/// What an answer says of a lock may be sent as it is.
#[test]
fn a_mode_has_the_same_word_in_and_out() {
    let service = Service::start(&[]);
    let mut events = Events::follow(&service.address, "/v1/events", &[]);
    events.until("hello");
    for (name, body) in [
        ("a", r#"{"mode": "exclusive"}"#),
        ("b", r#"{"mode": "read"}"#),
        ("c", r#"{"mode": "write"}"#),
        // An older word for exclusive.
        ("d", r#"{"mode": "mutex"}"#),
    ] {
        service.lock(name, body).is(200);
        let mode = events.until("granted")["mode"].clone();
        assert_eq!(
            service.lock(name, &json!({ "mode": mode }).to_string()).status,
            if name == "b" { 200 } else { 409 }
        );
        let seen = service.ask(&format!("GET /v1/locks/{name}"), "").is(200).json();
        assert_eq!(seen["holders"][0]["mode"], mode, "{seen}");
        if name == "b" {
            events.until("granted");
        }
    }
}

/// A client need not know the language of the service.
#[test]
fn an_error_of_form_names_the_field_and_what_it_has_to_be() {
    let service = Service::start(&[]);
    for (line, body, told) in [
        (
            "POST /v1/locks/x",
            r#"{"ttl_ms": "1s"}"#,
            "ttl_ms: invalid type: string \"1s\", expected a whole number",
        ),
        (
            "POST /v1/locks/x",
            r#"{"ttl_ms": -1}"#,
            "ttl_ms: invalid value: integer `-1`, expected a whole number from 0 on",
        ),
        (
            "POST /v1/locks/x",
            r#"{"ttl_ms": 1.5}"#,
            "ttl_ms: invalid type: floating point `1.5`, expected a whole number",
        ),
        (
            "POST /v1/locks/x",
            r#"{"holder": 1}"#,
            "holder: invalid type: integer `1`, expected a text",
        ),
        (
            "POST /v1/locks/x",
            r#"{"fair": "yes"}"#,
            "fair: invalid type: string \"yes\", expected true or false",
        ),
        ("POST /v1/locks/x", "7", "body: invalid type: integer `7`, expected an object"),
        ("POST /v1/locks/x", "null", "body: invalid type: null, expected an object"),
        (
            "POST /v1/locks/x",
            r#"{"mode": "none"}"#,
            "mode: unknown variant `none`, expected one of `exclusive`",
        ),
        (
            "POST /v1/locks/x",
            r#"{"permits": 5}"#,
            "permits: invalid type: integer `5`, expected an object",
        ),
        (
            "POST /v1/locks/x",
            r#"{"permits": {"take": 1, "of": 4294967296}}"#,
            "permits.of: invalid value: integer `4294967296`, expected a whole number from 0 to 4294967295",
        ),
        ("POST /v1/holds", r#"{"locks": {}}"#, "locks: invalid type: object, expected a list"),
        (
            "POST /v1/holds",
            r#"{"locks": [{"name": 1}]}"#,
            "locks[0].name: invalid type: integer `1`, expected a text",
        ),
        ("POST /v1/locks/x", r#"{"ttl": 1}"#, "body: unknown field `ttl`, expected one of `mode`"),
        ("POST /v1/locks/x", "{", "body: EOF while parsing an object"),
        ("GET /v1/locks?limit=many", "", "query: limit: expected a whole number"),
        (
            "GET /v1/locks?limit=99999999999",
            "",
            "query: limit: invalid value: integer `99999999999`, expected a whole number from 0 to",
        ),
        ("GET /v1/holds?limit=99999999999", "", "query: limit: the number is too large"),
        ("GET /v1/events?after=99999999999999999999", "", "query: after: the number is too large"),
        ("GET /v1/locks?size=1", "", "query: size: unknown field `size`"),
    ] {
        let refused = service.ask(line, body);
        let error = refused.is(400).kind("Invalid").get("error");
        assert!(error.starts_with(told), "{line} {body}: {error}");
        assert!(
            !["u64", "u32", "struct", "enum", "digit"].iter().any(|word| error.contains(word)),
            "{error}"
        );
    }
}

/// What other languages and their tools make of a body is read, or refused for what it is.
#[test]
fn h553_a_body_is_read_as_other_languages_write_it() {
    let service = Service::start(&[]);
    // A float is a whole number in JSON's own description; some languages have no other numbers.
    for (name, body) in [
        ("zero", r#"{"ttl_ms": 9000.0, "wait_ms": 0.0, "max_hold_ms": null}"#),
        ("exponent", r#"{"ttl_ms": 9e3}"#),
        ("permits", r#"{"mode": "permits", "permits": {"take": 1.0, "of": 5E0}, "ttl_ms": 9000}"#),
        ("mark", "\u{feff}{\"ttl_ms\": 9000}"),
    ] {
        assert_eq!(service.lock(name, body).is(200).json()["ttl_ms"], 9000, "{body}");
    }
    let list = r#"{"prefix": "", "limit": 2.0}"#;
    let listed = service.ask("POST /v1/lock/list", list).is(200).json();
    assert_eq!(listed["locks"].as_array().map(Vec::len), Some(2), "{listed}");
    service.ask("GET /v1/locks?limit=2", "").is(200);
    // A float that may stand for another number is none.
    for number in ["9000.5", "-1.0", "9007199254740993.0", "1e300"] {
        let body = format!("{{\"ttl_ms\": {number}}}");
        let refused = service.lock("x", &body).is(400).get("error");
        assert!(refused.starts_with("ttl_ms: invalid type: floating point"), "{refused}");
        assert!(refused.contains("expected a whole number from 0 on"), "{refused}");
    }
    let compressed = [("Content-Encoding", "gzip")];
    let refused = service.address.ask("POST /v1/locks/x", &compressed, "{}");
    refused.is(415).kind("Invalid");
    assert_eq!(refused.get("error"), "Content-Encoding: \"gzip\" is not read here");
    assert_eq!(refused.get("next_step"), "send the body as it is, without Content-Encoding");
    service.address.ask("POST /v1/locks/plain", &[("Content-Encoding", "identity")], "{}").is(200);
    let mut kept = Kept::open(&service.address);
    kept.write(b"POST /v1/locks/x HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json; charset=utf-16\r\n\
                 Content-Length: 6\r\n\r\n\xff\xfe{\0}\0");
    let refused = kept.answer().unwrap();
    refused.is(400).kind("Invalid");
    assert_eq!(refused.get("error"), "body: it is not UTF-8");
    assert_eq!(refused.get("next_step"), "send the JSON in UTF-8");
    assert!(!service.is_held("x"));
}
