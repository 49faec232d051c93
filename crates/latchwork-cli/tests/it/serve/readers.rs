//! Reads that wait, values of holders, names of waiters, and late bodies.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use latchwork_services::{Direction, Proxy, RedisServer};
use latchwork_store::testing::stalls;
use serde_json::{Value, json};

use super::Service;
use super::client::{AT_ONCE, Address, Events, Kept, read};
use super::tickets::{Team, kill, redis};
use crate::common::eventually;
use crate::doctor::at;

/// A read of a lock that waits for another version than that of an answer before.
fn after(
    service: &Service,
    name: &str,
    version: &str,
    wait: u64,
) -> Box<dyn super::client::Connection> {
    let line = format!("GET /v1/locks/{name}?after={version}&wait_ms={wait}");
    service.address.send(&line, &[], "")
}

#[test]
fn a_read_of_a_lock_waits_for_its_next_version() {
    let server = redis();
    let team = Team::at(&server.url());
    let (one, two) = (team.instance(), team.instance());
    let version = |service: &Service| service.ask("GET /v1/locks/x", "").is(200).get("version");
    let free = version(&one);
    assert_eq!(free, version(&two), "all instances agree");
    // By this instance, at once.
    let reading = after(&one, "x", &free, 60_000);
    let start = Instant::now();
    let hold = one.hold("x", r#"{"ttl_ms": 60000}"#);
    let held = read(reading).unwrap();
    assert_eq!(held.is(200).json()["held"], true);
    stalls::in_time(start, AT_ONCE);
    let held = held.get("version");
    assert!(held != free && held == version(&two));
    // A renewal is no change, and a wait has an end.
    one.renew(&hold).is(200);
    let start = Instant::now();
    let same = read(after(&two, "x", &held, 1_500)).unwrap();
    assert_eq!(same.is(200).get("version"), held);
    assert!(start.elapsed() >= Duration::from_millis(1_500), "{:?}", start.elapsed());
    // By another instance; by another program; by a waiter.
    let reading = after(&two, "x", &held, 60_000);
    one.release(&hold).is(200);
    assert_eq!(read(reading).unwrap().is(200).json()["held"], false);
    let hold = one.hold("x", r#"{"ttl_ms": 60000}"#);
    let reading = after(&one, "x", &version(&one), 60_000);
    assert_eq!(at(&team.url, &["release", "--force", "x"]).code(), 0);
    read(reading).unwrap().is(200);
    one.release(&hold).is(410);
    let _held = one.hold("x", r#"{"ttl_ms": 60000}"#);
    let reading = after(&two, "x", &version(&two), 60_000);
    let waiting =
        one.address.send("POST /v1/locks/x", &[], r#"{"wait_ms": 60000, "ttl_ms": 60000}"#);
    assert_eq!(read(reading).unwrap().is(200).json()["waiters"].as_array().unwrap().len(), 1);
    drop(waiting);
    // Stale versions are answered at once, and mistakes are named.
    let start = Instant::now();
    read(after(&one, "x", &free, 60_000)).unwrap().is(200);
    stalls::in_time(start, AT_ONCE);
    for (query, field) in [
        ("after=x", "after:"),
        ("wait_ms=1000", "after:"),
        (&*format!("after={free}&wait_ms=300001"), "wait_ms:"),
        ("wait_ms=-1", "query:"),
    ] {
        let refused = one.ask(&format!("GET /v1/locks/x?{query}"), "");
        refused.is(400).kind("Invalid");
        assert!(refused.get("error").starts_with(field), "{query}: {refused:?}");
    }
    let named = one.ask(&format!("GET /v1/lock?name=x&after={free}&wait_ms=60000"), "");
    named.is(200);
    // A stop ends the wait.
    let reading = after(&two, "free", &free, 60_000);
    let other = version(&two);
    let reading2 = after(&two, "x", &other, 60_000);
    eventually("both", || {
        let metrics = two.ask("GET /metrics", "").text;
        metrics.contains("latchwork_connections 3").then_some(())
    });
    // Nothing tells that the requests on them have been read.
    std::thread::sleep(Duration::from_millis(500));
    two.process.signal(rustix::process::Signal::TERM);
    for reading in [reading, reading2] {
        let answer = read(reading).unwrap();
        assert!([200, 503].contains(&answer.status), "{answer:?}");
    }
}

#[test]
fn readers_of_a_lock_see_the_value_of_its_holder() {
    let server = redis();
    let team = Team::at(&server.url());
    let (one, two) = (team.instance(), team.instance());
    let value = json!({ "url": "http://10.0.0.7:8080", "shards": [1, 2], "text": "a\u{1f}b ü" });
    let held = one.lock("x", &json!({ "value": value, "ttl_ms": 20_000 }).to_string());
    two.renew(&held.is(200).get("hold")).is(200);
    let seen = two.ask("GET /v1/locks/x", "").is(200).json();
    assert_eq!(seen["holders"][0]["value"], value);
    assert_eq!(two.ask("GET /v1/holds", "").is(200).json()["holds"][0]["value"], value);
    // Another value is another request.
    let key = [("Idempotency-Key", "k")];
    one.address.ask("POST /v1/locks/y", &key, r#"{"value": 1}"#).is(200);
    one.address.ask("POST /v1/locks/y", &key, r#"{"value": 2}"#).is(422);
    let leader = r#"{"candidate": "10.0.0.7", "value": {"zone": "a"}}"#;
    one.ask("POST /v1/elections/e/campaign", leader).is(200);
    let seen = one.ask("GET /v1/locks/e", "").is(200).json();
    assert_eq!(
        (&seen["holders"][0]["candidate"], &seen["holders"][0]["value"]["zone"]),
        (&json!("10.0.0.7"), &json!("a"))
    );
    one.hold("plain", "{}");
    assert_eq!(
        one.ask("GET /v1/locks/plain", "").is(200).json()["holders"][0]["value"],
        Value::Null
    );
}

#[test]
fn h535_a_value_comes_back_as_it_was_written() {
    let server = redis();
    let team = Team::at(&server.url());
    let (one, two) = (team.instance(), team.instance());
    for (number, value) in [
        "9007199254740993",
        "123456789012345678901234567890.10",
        r#"{"b":1.0,"a":[-0,1E5,{"z":"\u00e9\/","y":null}]}"#,
    ]
    .into_iter()
    .enumerate()
    {
        let body = format!(r#"{{"ttl_ms": 20000, "value": {value}}}"#);
        one.hold(&format!("x{number}"), &body);
        let told = format!(r#""value":{value}"#);
        for line in [&format!("GET /v1/locks/x{number}"), "GET /v1/locks", "GET /v1/holds"] {
            for service in [&one, &two] {
                let answer = service.ask(line, "");
                assert!(answer.is(200).text.contains(&told), "{told}: {answer:?}");
            }
        }
    }
    for value in ["1e400", r#""\ud800""#] {
        let refused = one.lock("y", &format!(r#"{{"value": {value}}}"#));
        assert!(refused.is(400).get("error").starts_with("value: "), "{refused:?}");
        refused.step(
            "write a number that a double can have, and whole characters; or send it as a text",
        );
    }
    assert!(!one.is_held("y"));
}

/// Those of this service at once, those of other programs when the store shows them.
#[test]
fn events_name_the_waiters() {
    let server = redis();
    let service = Team::at(&server.url()).instance();
    let mut events = Events::follow(&service.address, "/v1/events", &[]);
    service.hold("x", r#"{"ttl_ms": 60000}"#);
    let body = r#"{"wait_ms": 60000, "ttl_ms": 60000, "holder": "next in the queue"}"#;
    let waiting = service.address.send("POST /v1/locks/x", &[], body);
    assert_eq!(events.until("waiting")["holder"], "next in the queue");
    drop(waiting);
    assert_eq!(events.until("withdrawn")["holder"], "next in the queue");
    let _read = service.hold("rw", r#"{"mode": "read", "ttl_ms": 60000}"#);
    let mine = service.hold("rw", r#"{"mode": "read", "ttl_ms": 60000, "holder": "upgrader"}"#);
    let upgrade = format!("POST /v1/holds/{mine}/upgrade");
    let upgrade = service.address.send(&upgrade, &[], r#"{"wait_ms": 30000}"#);
    assert_eq!(events.until("waiting")["holder"], "upgrader");
    drop(upgrade);
}

/// Its client sends the head first; the connection stays open all the same.
#[test]
fn a_late_body_keeps_the_connection() {
    let service = Service::start(&[]);
    let hold = service.hold("x", r#"{"ttl_ms": 60000}"#);
    let Address::Tcp(port) = service.address else { unreachable!() };
    for round in 0..30 {
        let mut connection = Kept::open(&service.address);
        let line = format!("POST /v1/holds/{hold}/renew");
        let head = format!(
            "{line} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n"
        );
        for _ in 0..3 {
            connection.write(head.as_bytes());
            std::thread::sleep(Duration::from_millis(round % 5 * 3));
            connection.write(b"{}");
            connection.answer().unwrap().is(200);
        }
        connection.ask("GET /healthz").is(200);
    }
    // One that never comes delays the answer for a second, and no renewal.
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let line = format!(
        "POST /v1/holds/{hold}/renew HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
    );
    let start = Instant::now();
    stream.write_all(line.as_bytes()).unwrap();
    read(stream).unwrap().is(200);
    stalls::in_time(start, AT_ONCE);
}

/// Another instance has released it: a renewal here calls it lost, a repeat of the release must not.
#[test]
fn h396_a_release_after_a_renewal_here_is_unconfirmed() {
    let server = redis();
    let team = Team::at(&server.url());
    let (one, two) = (team.instance(), team.instance());
    let hold = one.hold("x", r#"{"ttl_ms": 60000}"#);
    one.release(&hold).is(200);
    two.renew(&hold).is(410).kind("Lost");
    two.release(&hold).is(410).kind("Unconfirmed");
}

/// The instance that has upgraded a hold is gone with its answer: any other one tells a repeat the new id.
#[test]
fn h397_an_upgrade_whose_answer_was_lost_is_repeated_anywhere() {
    let server = redis();
    let team = Team::at(&server.url());
    let (one, two) = (team.instance(), team.instance());
    let session = one.ask("POST /v1/sessions", r#"{"ttl_ms": 20000}"#).is(200).get("session");
    let body = json!({ "mode": "read", "session": session }).to_string();
    let read = one.hold("x", &body);
    let upgraded = one.ask(&format!("POST /v1/holds/{read}/upgrade"), "");
    let token = upgraded.is(200).get("token");
    kill(one);
    let repeated = two.ask(&format!("POST /v1/holds/{read}/upgrade"), "");
    assert_eq!(repeated.is(200).get("token"), token);
    let hold = repeated.get("hold");
    assert_ne!(hold, read);
    two.renew(&hold).is(200);
    two.ask(&format!("POST /v1/holds/{read}/downgrade"), "").is(410);
    let renewed = two.ask(&format!("POST /v1/sessions/{session}/renew"), "");
    assert_eq!((renewed.is(200).number("locks"), &renewed.json()["lost"]), (1, &json!([])));
    // The old id opens nothing else.
    two.renew(&read).is(410);
    two.release(&hold).is(200);
    two.ask(&format!("POST /v1/holds/{read}/upgrade"), "").is(410);
    eventually("a free lock", || (!two.is_held("x")).then_some(()));
}

/// Two instances, of which the first reaches the store by a proxy.
fn team_with_a_proxy(server: &RedisServer) -> (Team, Proxy, Service, Service) {
    let proxy = Proxy::redis(server.port()).unwrap();
    let mut team = Team::at(&server.url());
    let two = team.instance();
    team.url = proxy.url();
    let one = team.instance();
    (team, proxy, one, two)
}

/// The instance is killed between the grant of the upgrade and the release of the read hold: a repeat elsewhere is not
/// in the way of itself, and nothing is left of the first one.
#[test]
fn h447_an_upgrade_whose_instance_died_halfway_is_repeated_anywhere() {
    let server = redis();
    let (_team, proxy, one, two) = team_with_a_proxy(&server);
    let read = one.hold("x", r#"{"mode": "read", "ttl_ms": 60000}"#);
    let upgrade = format!("POST /v1/holds/{read}/upgrade");
    let holders = || two.ask("GET /v1/locks/x", "").json()["holders"].as_array().unwrap().len();
    proxy.delay(Direction::ToClient, Duration::from_millis(700));
    let upgrading = one.address.send(&upgrade, &[], "");
    eventually("both holds", || (holders() == 2).then_some(()));
    kill(one);
    drop(upgrading);
    let repeated = two.ask(&upgrade, "");
    let (hold, token) = (repeated.is(200).get("hold"), repeated.get("token"));
    assert_eq!(holders(), 1);
    assert_eq!(two.renew(&hold).is(200).get("token"), token);
    // The old id releases nothing, and does not say that it did.
    two.release(&read)
        .is(410)
        .kind("Released")
        .step("use the id in the answer to that change; to learn it again, repeat the change");
    assert!(two.is_held("x"));
    two.release(&hold).is(200);
    eventually("a free lock", || (!two.is_held("x")).then_some(()));
}

/// The client's own earlier request is no rival for which it has to give up its hold.
#[test]
fn h453_an_upgrade_is_no_rival_of_its_own_repeat() {
    let server = redis();
    let team = Team::at(&server.url());
    let (one, two) = (team.instance(), team.instance());
    let other = one.hold("x", r#"{"mode": "read", "ttl_ms": 60000}"#);
    let mine = one.hold("x", r#"{"mode": "read", "ttl_ms": 60000}"#);
    let upgrade = format!("POST /v1/holds/{mine}/upgrade");
    let upgrading = one.address.send(&upgrade, &[], r#"{"wait_ms": 60000}"#);
    eventually("the wait", || (two.waiters("x") == 1).then_some(()));
    let repeated = two.ask(&upgrade, "");
    repeated
        .is(409)
        .kind("TimedOut")
        .step("renew the hold, and repeat this request within its ttl");
    two.renew(&mine).is(200);
    two.release(&other).is(200);
    let hold = read(upgrading).unwrap().is(200).get("hold");
    two.ask(&upgrade, "").is(200);
    two.renew(&hold).is(200);
}

/// The instance where an upgrade waits cannot reach the store for longer than the ttl, while the client renews at another
/// one: the hold is the client's, whatever the first instance believes.
#[test]
fn h470_a_wait_without_its_store_ends_no_hold() {
    let server = redis();
    let (_team, proxy, one, two) = team_with_a_proxy(&server);
    let _other = two.hold("x", r#"{"mode": "read", "ttl_ms": 60000}"#);
    let mine = one.hold("x", r#"{"mode": "read", "ttl_ms": 2000}"#);
    let upgrade = format!("POST /v1/holds/{mine}/upgrade");
    let upgrading = one.address.send(&upgrade, &[], r#"{"wait_ms": 30000}"#);
    eventually("the wait", || (two.waiters("x") == 1).then_some(()));
    for direction in [Direction::ToServer, Direction::ToClient] {
        proxy.freeze(direction);
    }
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(4) {
        two.renew(&mine).is(200);
        std::thread::sleep(Duration::from_millis(200));
    }
    for direction in [Direction::ToServer, Direction::ToClient] {
        proxy.thaw(direction);
    }
    eventually("a renewal at the first one", || {
        two.renew(&mine).is(200);
        let renewed = one.renew(&mine);
        assert!([200, 503].contains(&renewed.status), "{renewed:?}");
        (renewed.status == 200).then_some(())
    });
    let refused = read(upgrading).unwrap();
    refused.is(503).kind("Unreachable");
    two.release(&mine).is(200);
}

/// A client that hedges, or a balancer that repeats: both requests are one change.
#[test]
fn h471_a_change_at_two_instances_at_once_is_one() {
    let server = redis();
    let hook = super::webhook::receiver(&[204]);
    let team = Team::at(&server.url());
    let start = || team.with(&["--webhook-lost", &hook.address]);
    let (one, two) = (start(), start());
    let both = |line: &str, body: &str, then: &dyn Fn()| {
        let asked = [&one, &two].map(|it| it.address.send(line, &[], body));
        then();
        let [a, b] = asked.map(|it| read(it).unwrap());
        assert_eq!(a.is(200).get("token"), b.is(200).get("token"));
        assert_eq!(two.renew(&a.get("hold")).is(200).get("token"), a.get("token"));
        one.release(&b.get("hold")).is(200);
        eventually("a free lock", || (!two.is_held("x")).then_some(()));
    };
    for (from, verb) in [("read", "upgrade"), ("write", "downgrade")] {
        for _ in 0..12 {
            let hold = one.hold("x", &json!({ "mode": from, "ttl_ms": 30_000 }).to_string());
            both(&format!("POST /v1/holds/{hold}/{verb}"), "", &|| ());
        }
    }
    for _ in 0..3 {
        let body = r#"{"mode": "read", "ttl_ms": 30000}"#;
        let (other, hold) = (two.hold("x", body), one.hold("x", body));
        both(&format!("POST /v1/holds/{hold}/upgrade"), r#"{"wait_ms": 9000}"#, &|| {
            std::thread::sleep(Duration::from_millis(200));
            two.release(&other).is(200);
        });
    }
    assert_eq!(hook.told.try_recv().ok(), None, "nothing was lost");
}

/// The hold is kept by its own id. An upgrade is refused because the session has ended, and changes nothing.
#[test]
fn h472_an_upgrade_after_its_session_leaves_the_read_hold() {
    let server = redis();
    let service = Team::at(&server.url()).instance();
    let session = service.ask("POST /v1/sessions", r#"{"ttl_ms": 1000}"#).is(200).get("session");
    let body = json!({ "mode": "read", "session": session }).to_string();
    let hold = service.hold("x", &body);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(2_500) {
        service.renew(&hold).is(200);
        std::thread::sleep(Duration::from_millis(200));
    }
    let refused = service.ask(&format!("POST /v1/holds/{hold}/upgrade"), "");
    assert!(refused.text.contains("session"), "{refused:?}");
    service.renew(&hold).is(200);
    std::thread::sleep(Duration::from_millis(300));
    service.renew(&hold).is(200);
    service.lock("x", r#"{"mode": "write"}"#).is(409);
}
