//! Sessions: one renewal keeps many holds, over instances that come and go.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use latchwork_services::{Direction, Proxy};
use latchwork_store::testing::stalls;
use serde_json::{Value, json};

use super::Service;
use super::client::{AT_ONCE, Answer, Events, Kept};
use super::security;
use super::tickets::{Team, kill, redis, whole};
use crate::common::eventually;
use crate::doctor::at;

fn begin(service: &Service, ttl: u64) -> String {
    let begun = service.ask("POST /v1/sessions", &format!(r#"{{"ttl_ms": {ttl}}}"#));
    assert_eq!(begun.is(200).number("locks"), 0);
    begun.get("session")
}

/// Acquires a lock in a session, and returns the id of the hold.
#[track_caller]
fn hold(service: &Service, session: &str, name: &str) -> String {
    service.lock(name, &json!({ "session": session }).to_string()).is(200).get("hold")
}

fn renew(service: &Service, session: &str) -> Answer {
    service.ask(&format!("POST /v1/sessions/{session}/renew"), "")
}

fn end(service: &Service, session: &str) -> Answer {
    service.ask(&format!("DELETE /v1/sessions/{session}"), "")
}

/// The names of a list of the answer.
fn names(answer: &Answer, list: &str) -> Vec<String> {
    let body = answer.is(200).json();
    let all = body[list].as_array().unwrap_or_else(|| panic!("{list}: {body}"));
    let mut names: Vec<_> = all.iter().map(|it| it["name"].as_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

/// Each instance grants some of the holds; the one that renewed them is killed.
#[test]
fn h390_any_instance_keeps_all_holds_of_a_session() {
    let server = redis();
    let team = Team::at(&server.url());
    let (one, two) = (team.instance(), team.instance());
    let session = begin(&one, 6_000);
    hold(&one, &session, "a");
    hold(&one, &session, "b");
    assert_eq!(names(&renew(&one, &session), "held"), ["a", "b"]);
    // What another one grants is found.
    hold(&two, &session, "c");
    let renewed = renew(&one, &session);
    assert_eq!(
        (renewed.number("locks"), names(&renewed, "held")),
        (3, vec!["a".into(), "b".into(), "c".into()])
    );
    assert!(renewed.number("valid_for_ms") <= whole(6_000), "{renewed:?}");
    hold(&two, &session, "d");
    assert_eq!(names(&renew(&one, &session), "held"), ["a", "b", "c", "d"]);
    kill(one);
    // One that knows a part of them, and one that knows none.
    assert_eq!(renew(&two, &session).is(200).number("locks"), 4);
    kill(two);
    let three = team.instance();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(8) {
        let renewed = renew(&three, &session);
        assert_eq!((renewed.is(200).number("locks"), &renewed.json()["lost"]), (4, &json!([])));
        sleep(Duration::from_millis(1_500));
    }
    three.lock("a", "{}").is(409);
    let ended = end(&three, &session);
    assert_eq!((ended.is(200).number("released"), ended.json()["lost"].clone()), (4, json!([])));
    assert!(!three.is_held("a") && !three.is_held("d"));
}

/// The renewals of a session reach the store in few commands, in far less time than a third of the ttl.
#[test]
fn h391_one_renewal_keeps_a_thousand_holds() {
    const HOLDS: usize = 1_000;
    let server = redis();
    let team = Team::at(&server.url());
    let (one, two) = (team.instance(), team.instance());
    let session = begin(&one, 120_000);
    let mut connection = Kept::open(&one.address);
    for number in 0..HOLDS {
        let body = json!({ "session": session }).to_string();
        let text = format!(
            "POST /v1/locks/lock-{number} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        connection.write(text.as_bytes());
        connection.answer().unwrap().is(200);
    }
    for (service, what) in [(&one, "granted them"), (&two, "found them"), (&two, "knows them")] {
        let start = Instant::now();
        let renewed = renew(service, &session);
        println!("{what}: {:?}", start.elapsed());
        assert_eq!(renewed.is(200).number("locks"), HOLDS as u64);
        stalls::in_time(start, AT_ONCE * 4);
        assert!(renewed.number("valid_for_ms") <= whole(120_000));
    }
    let start = Instant::now();
    assert_eq!(end(&two, &session).is(200).number("released"), HOLDS as u64);
    println!("ended: {:?}", start.elapsed());
    assert!(!one.is_held("lock-0") && !one.is_held("lock-999"));
}

/// With any others, a hold that another instance has granted would not be renewed.
#[test]
fn h452_only_the_right_marks_spare_the_search_for_holds() {
    let server = redis();
    let team = Team::at(&server.url());
    let (one, two) = (team.instance(), team.instance());
    let session = begin(&one, 60_000);
    let body = json!({ "session": session }).to_string();
    let grant = |service: &Service, name: &str| {
        let mark = service.lock(name, &body).is(200).get("mark");
        u64::from_str_radix(&mark, 16).unwrap()
    };
    let sum = |marks: &[u64]| marks.iter().copied().fold(0, u64::wrapping_add);
    let told = |service: &Service, marks: u64| {
        let body = json!({ "marks": format!("{marks:016x}") }).to_string();
        names(&service.ask(&format!("POST /v1/sessions/{session}/renew"), &body), "held")
    };
    assert_eq!(told(&one, 0), [""; 0]);
    let (a, b) = (grant(&one, "a"), grant(&one, "b"));
    let reads = || server.info("total_commands_processed").unwrap().parse::<u64>().unwrap();
    let before = reads();
    for _ in 0..20 {
        assert_eq!(told(&one, sum(&[b, a])), ["a", "b"]);
    }
    let spared = reads() - before;
    let before = reads();
    for _ in 0..20 {
        assert_eq!(told(&one, a), ["a", "b"]);
    }
    let searched = reads() - before;
    assert!(searched >= spared + 20, "{spared} and {searched} commands");
    // Nor do those of a hold that is counted twice.
    let before = reads();
    assert_eq!(told(&one, sum(&[a, b, b, b])), ["a", "b"]);
    assert!(reads() > before + 1, "no search");
    // The client knows c of the other instance, and not d, whose answer was lost: as many as this one has renewed.
    let (c, d) = (grant(&two, "c"), grant(&one, "d"));
    assert_eq!(told(&one, sum(&[a, b, c])), ["a", "b", "c", "d"]);
    assert_eq!(told(&two, sum(&[a, b, c])), ["a", "b", "c", "d"]);
    assert_eq!(told(&two, sum(&[a, b, c, d])), ["a", "b", "c", "d"]);
    // Neither is needed, body or marks.
    for body in ["", "null", "{}"] {
        let renewed = one.ask(&format!("POST /v1/sessions/{session}/renew"), body);
        assert_eq!(renewed.is(200).number("locks"), 4, "{body}");
    }
    // A lock that is lost is none of the others.
    assert_eq!(at(&team.url, &["release", "--force", "d"]).code(), 0);
    assert_eq!(told(&two, sum(&[a, b, c, d])), ["a", "b", "c"]);
    for bad in [json!("0"), json!("G000000000000000"), json!(5), json!({})] {
        let body = json!({ "marks": bad }).to_string();
        one.ask(&format!("POST /v1/sessions/{session}/renew"), &body).is(400).kind("Invalid");
    }
}

/// The client has learned of as many locks as the instance that renews has granted, and they are others.
#[test]
fn h440_a_lost_answer_hides_no_hold_of_a_session() {
    let server = redis();
    let team = Team::at(&server.url());
    let (one, two) = (team.instance(), team.instance());
    let session = begin(&one, 2_000);
    let _unanswered = hold(&one, &session, "unanswered");
    hold(&two, &session, "answered");
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(4) {
        assert_eq!(names(&renew(&one, &session), "held"), ["answered", "unanswered"]);
        sleep(Duration::from_millis(500));
    }
    two.lock("answered", "{}").is(409);
}

/// The client closes its connection after the grant, while the service asks the store for the session.
#[test]
fn h442_a_withdrawn_acquire_leaves_no_hold_in_its_session() {
    let server = redis();
    let way = Proxy::plain(server.port()).unwrap();
    let url = server.url().replace(&server.port().to_string(), &way.port().to_string());
    let (team, cut) = (Team::at(&server.url()), Team::at(&url));
    let (one, two) = (team.instance(), cut.instance());
    let session = begin(&two, 60_000);
    let body = json!({ "session": session }).to_string();
    way.delay(Direction::ToClient, Duration::from_secs(1));
    let asking = two.address.send("POST /v1/locks/x", &[], &body);
    eventually("a grant", || one.is_held("x").then_some(()));
    // The service learns of the grant after a second, and of the session after two.
    sleep(Duration::from_millis(1_500));
    drop(asking);
    sleep(Duration::from_secs(1));
    way.delay(Direction::ToClient, Duration::ZERO);
    eventually("a free lock", || (!one.is_held("x")).then_some(()));
    assert_eq!(names(&renew(&two, &session), "held"), [""; 0]);
}

/// The instance that grants is far from the store: it learns of the grant after a second, and of the session after two.
/// Meanwhile another instance ends the session, before or after the store is asked for it.
#[test]
fn h450_a_session_that_ends_during_a_grant_elsewhere_leaves_no_hold() {
    let server = redis();
    let way = Proxy::plain(server.port()).unwrap();
    let url = server.url().replace(&server.port().to_string(), &way.port().to_string());
    let (one, two) = (Team::at(&server.url()).instance(), Team::at(&url).instance());
    for ends_after in [500, 1_500] {
        let session = begin(&one, 60_000);
        let body = json!({ "session": session }).to_string();
        way.delay(Direction::ToClient, Duration::from_secs(1));
        let answer = scope(|scope| {
            let address = two.address.clone();
            let body = &body;
            let asking = scope.spawn(move || address.ask("POST /v1/locks/x", &[], body));
            eventually("a grant", || one.is_held("x").then_some(()));
            sleep(Duration::from_millis(ends_after));
            assert_eq!(end(&one, &session).is(200).number("released"), 1);
            asking.join().unwrap()
        });
        way.delay(Direction::ToClient, Duration::ZERO);
        // The store had the session when it was asked; or it had not.
        if ends_after > 1_000 {
            let hold = answer.is(200).get("hold");
            two.ask(&format!("POST /v1/holds/{hold}/renew"), "").is(410);
        } else {
            answer.is(410);
        }
        assert!(!one.is_held("x"), "left behind after {ends_after} ms");
        renew(&two, &session).is(410);
    }
}

/// Both find what the other one grants, while their clients acquire and release: nothing is counted twice, or is left.
#[test]
fn h451_two_instances_that_renew_at_once_count_each_hold_once() {
    const EACH: usize = 12;
    let server = redis();
    let team = Team::at(&server.url());
    // The session, all locks, and one more while another hold is entered.
    let most = (1 + 2 * EACH + 1).to_string();
    let services = [team.with(&["--max-holds", &most]), team.with(&["--max-holds", &most])];
    let session = begin(&services[0], 60_000);
    let (granted, first) = (AtomicUsize::new(0), OnceLock::new());
    scope(|scope| {
        for (number, service) in services.iter().enumerate() {
            let (session, granted, first) = (&session, &granted, &first);
            let (address, renewer) = (service.address.clone(), service.address.clone());
            scope.spawn(move || {
                // Of two locks each, which the other instance keeps each by itself.
                for at in (0..EACH).step_by(2) {
                    let lock = |at| json!({ "name": format!("lock-{number}-{at}") });
                    let locks = [lock(at), lock(at + 1)];
                    let body = json!({ "session": session, "locks": locks }).to_string();
                    let hold = address.ask("POST /v1/holds", &[], &body).is(200).get("hold");
                    if (number, at) == (0, 0) {
                        first.set(hold).unwrap();
                    }
                    granted.fetch_add(2, Ordering::SeqCst);
                }
            });
            scope.spawn(move || {
                while granted.load(Ordering::SeqCst) < 2 * EACH {
                    let line = format!("POST /v1/sessions/{session}/renew");
                    let renewed = renewer.ask(&line, &[], "");
                    let mut held = names(&renewed, "held");
                    held.dedup();
                    assert_eq!(held.len() as u64, renewed.number("locks"), "{renewed:?}");
                    assert_eq!(names(&renewed, "lost"), [""; 0]);
                }
            });
        }
    });
    let [one, two] = &services;
    for service in &services {
        assert_eq!(renew(service, &session).is(200).number("locks"), 2 * EACH as u64);
        // There is room for one more: each lock was counted once.
        let more = service.hold("more", "{}");
        service.release(&more).is(200);
    }
    // One that is lost in part: where it was granted, it is lost as a whole; elsewhere, the other lock until its client
    // ends it.
    assert_eq!(at(&team.url, &["release", "--force", "lock-0-0"]).code(), 0);
    assert_eq!(names(&renew(two, &session), "lost"), ["lock-0-0"]);
    assert_eq!(names(&renew(one, &session), "lost"), ["lock-0-0", "lock-0-1"]);
    assert!(one.is_held("lock-0-1"));
    one.release(first.get().unwrap()).is(410);
    eventually("a free lock", || (!one.is_held("lock-0-1")).then_some(()));
    assert_eq!(names(&renew(two, &session), "lost"), ["lock-0-1"]);
    for service in &services {
        assert_eq!(renew(service, &session).is(200).number("locks"), 2 * EACH as u64 - 2);
    }
    assert_eq!(end(one, &session).is(200).number("released"), 2 * EACH as u64 - 2);
}

/// A renewal of the session has found the locks of one hold each by itself.
#[test]
fn a_released_hold_of_several_locks_counts_no_more() {
    let server = redis();
    let team = Team::at(&server.url());
    let (one, two) = (team.instance(), team.with(&["--max-holds", "4"]));
    let session = begin(&one, 60_000);
    let locks = ["a", "b", "c"].map(|name| json!({ "name": name }));
    let body = json!({ "session": session, "locks": locks }).to_string();
    let hold = one.ask("POST /v1/holds", &body).is(200).get("hold");
    assert_eq!(names(&renew(&two, &session), "held"), ["a", "b", "c"]);
    two.release(&hold).is(200);
    for name in ["d", "e", "f"] {
        two.hold(name, "{}");
    }
}

/// The store is far away.
#[test]
fn h443_the_next_renewal_counts_from_the_answer() {
    let server = redis();
    let way = Proxy::plain(server.port()).unwrap();
    let url = server.url().replace(&server.port().to_string(), &way.port().to_string());
    let service = Team::at(&url).instance();
    let session = begin(&service, 6_000);
    hold(&service, &session, "a");
    way.delay(Direction::ToClient, Duration::from_millis(300));
    let start = Instant::now();
    let renewed = renew(&service, &session);
    let took = start.elapsed().as_millis() as u64;
    let (valid, next) = (renewed.is(200).number("valid_for_ms"), renewed.number("renew_in_ms"));
    assert!(next > 0 && 3 * next + took <= valid + 100, "{took} ms: {renewed:?}");
}

/// It may end while a hold is changed: then the new claim is withdrawn.
#[test]
fn h444_no_change_of_a_hold_outlives_its_session() {
    let server = redis();
    let team = Team::at(&server.url());
    let one = team.instance();
    let session = begin(&one, 60_000);
    let read = one.lock("x", &json!({ "session": session, "mode": "read" }).to_string());
    let listed = one.ask("GET /v1/sessions", "").is(200).json();
    let name = listed["sessions"][0]["name"].as_str().unwrap().to_owned();
    assert_eq!(at(&team.url, &["release", "--force", &name]).code(), 0);
    let hold = read.is(200).get("hold");
    one.ask(&format!("POST /v1/holds/{hold}/upgrade"), "").is(410).kind("Lost");
    // The client relies on the read hold until it has read this answer.
    eventually("the read hold alone", || {
        let lock = one.ask("GET /v1/locks/x", "").is(200).json();
        let holders = lock["holders"].as_array().unwrap();
        (holders.len() == 1 && holders[0]["mode"] == "read").then_some(())
    });
    one.release(&hold).is(200);
}

#[test]
fn h445_a_release_elsewhere_is_no_loss_in_the_events() {
    let server = redis();
    let team = Team::at(&server.url());
    let (one, two) = (team.instance(), team.instance());
    let session = begin(&one, 60_000);
    let held = hold(&one, &session, "a");
    let mut events = Events::follow(&one.address, "/v1/events", &[]);
    two.release(&held).is(200);
    assert_eq!(names(&renew(&one, &session), "lost"), ["a"]);
    hold(&one, &session, "z");
    loop {
        let (word, event) = events.next().unwrap();
        assert_ne!(word, "lost", "{event}");
        if word == "granted" && event["name"] == "z" {
            break;
        }
    }
}

/// Two instances grant, a third one renews.
#[test]
fn h399_holds_that_are_granted_during_renewals_are_kept() {
    const EACH: usize = 20;
    let server = redis();
    let team = Team::at(&server.url());
    let services = [team.instance(), team.instance(), team.instance()];
    let session = begin(&services[2], 2_000);
    let granted = AtomicUsize::new(0);
    scope(|scope| {
        for (number, service) in services[..2].iter().enumerate() {
            let (session, granted, address) = (&session, &granted, service.address.clone());
            scope.spawn(move || {
                for at in 0..EACH {
                    let line = format!("POST /v1/locks/lock-{number}-{at}");
                    let body = json!({ "session": session }).to_string();
                    let held = address.ask(&line, &[], &body).is(200).get("hold");
                    if at % 4 == 3 {
                        address.ask(&format!("DELETE /v1/holds/{held}"), &[], "").is(200);
                    }
                    granted.fetch_add(1, Ordering::SeqCst);
                    sleep(Duration::from_millis(120));
                }
            });
        }
        while granted.load(Ordering::SeqCst) < 2 * EACH {
            renew(&services[2], &session).is(200);
            sleep(Duration::from_millis(400));
        }
    });
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(4) {
        let renewed = renew(&services[2], &session);
        assert_eq!(renewed.is(200).number("locks"), 30, "{renewed:?}");
        sleep(Duration::from_millis(500));
    }
    let ended = end(&services[0], &session);
    assert_eq!((ended.is(200).number("released"), &ended.json()["lost"]), (30, &json!([])));
}

/// By another process, by an administrator, or by a release elsewhere: the client learns which, and keeps the others.
#[test]
fn h392_a_lost_hold_of_a_session_is_told_by_name() {
    let server = redis();
    let team = Team::at(&server.url());
    let (one, two) = (team.instance(), team.instance());
    let session = begin(&one, 20_000);
    for name in ["a", "b", "c"] {
        hold(&one, &session, name);
    }
    assert_eq!(at(&team.url, &["release", "--force", "b"]).code(), 0);
    let renewed = renew(&one, &session);
    assert_eq!(
        (names(&renewed, "lost"), names(&renewed, "held")),
        (vec!["b".into()], vec!["a".into(), "c".into()])
    );
    assert_eq!(renewed.json()["lost"][0]["reason"], "taken");
    assert_eq!(names(&renew(&one, &session), "lost"), [""; 0], "told once");
    // An instance that never knew it tells what is held.
    assert_eq!(at(&team.url, &["release", "--force", "c"]).code(), 0);
    let renewed = renew(&two, &session);
    assert_eq!(names(&renewed, "held"), ["a"]);
    // A hold that its client has changed or released here is none.
    let read = one.lock("rw", &json!({ "session": session, "mode": "read" }).to_string());
    let upgraded = one.ask(&format!("POST /v1/holds/{}/upgrade", read.is(200).get("hold")), "");
    let renewed = renew(&one, &session);
    assert!(!names(&renewed, "lost").contains(&"rw".to_owned()), "{renewed:?}");
    assert_eq!(names(&renew(&two, &session), "held"), ["a", "rw"]);
    one.release(&upgraded.is(200).get("hold")).is(200);
    let renewed = renew(&one, &session);
    assert_eq!((renewed.number("locks"), renewed.json()["lost"].clone()), (1, json!([])));
}

/// Its holds end with it: after its ttl, by its end, or by force; and nobody adds one to it.
#[test]
fn h393_a_session_that_has_ended_keeps_nothing() {
    let server = redis();
    let team = Team::at(&server.url());
    let (one, two) = (team.instance(), team.instance());
    let session = begin(&one, 20_000);
    hold(&two, &session, "a");
    assert_eq!(end(&one, &session).is(200).number("released"), 1);
    assert!(!one.is_held("a"));
    let body = json!({ "session": session }).to_string();
    for service in [&one, &two] {
        service.lock("b", &body).is(410);
        renew(service, &session).is(410);
        eventually("a free lock", || (!service.is_held("b")).then_some(()));
    }
    end(&one, &session).is(200);
    end(&two, &session).is(410);
    // Silent clients.
    let silent = begin(&one, 2_000);
    hold(&one, &silent, "a");
    eventually("the end of the ttl", || (!two.is_held("a")).then_some(()));
    renew(&two, &silent).is(410).kind("Lost");
    // By an administrator.
    let forced = begin(&one, 20_000);
    hold(&one, &forced, "a");
    let listed = one.ask("GET /v1/sessions", "").is(200).json();
    let name = listed["sessions"][0]["name"].as_str().unwrap().to_owned();
    assert_eq!((listed["sessions"][0]["locks"].as_u64(), name.len()), (Some(1), 50), "{listed}");
    assert_eq!(at(&team.url, &["release", "--force", &name]).code(), 0);
    let over = renew(&one, &forced);
    over.is(410).kind("Lost");
    assert!(over.get("error").starts_with("session: "), "{over:?}");
    // An earlier answer has promised its holds. A client that has read this one ends them.
    sleep(Duration::from_millis(300));
    assert!(two.is_held("a"));
    end(&one, &forced).is(410);
    eventually("a free lock", || (!two.is_held("a")).then_some(()));
}

/// A hold outlives its session if it was granted or renewed later. A late renewal of the session frees it from nobody.
#[test]
fn h475_a_late_renewal_of_a_session_frees_no_hold() {
    let server = redis();
    let team = Team::at(&server.url());
    let (one, two) = (team.instance(), team.instance());
    let session = begin(&one, 2_000);
    let own = hold(&one, &session, "own");
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(2_500) {
        one.renew(&own).is(200);
        sleep(Duration::from_millis(200));
    }
    for service in [&one, &two] {
        renew(service, &session).is(410).kind("Lost");
    }
    sleep(Duration::from_millis(200));
    assert_eq!(two.renew(&own).is(200).json()["locks"][0]["name"], "own");
    one.release(&own).is(200);
}

/// The old connection of a stream may break long after the client has opened the next one.
#[test]
fn h477_an_old_bound_stream_ends_no_session_that_a_newer_one_keeps() {
    let server = redis();
    let service = Service::start(&["--store", &server.url()]);
    let session = begin(&service, 30_000);
    hold(&service, &session, "a");
    let open = || {
        let path = format!("/v1/sessions/{session}/events?bound=true");
        let mut stream = Events::follow(&service.address, &path, &[]);
        stream.until("kept");
        stream
    };
    let old = open();
    let new = open();
    drop(old);
    sleep(Duration::from_millis(500));
    assert_eq!(renew(&service, &session).is(200).number("locks"), 1);
    drop(new);
    eventually("the end of the session", || (!service.is_held("a")).then_some(()));
    // With a shared seal key, the newer one may be at another instance: the ttl ends the session.
    let team = Team::at(&server.url());
    let (one, two) = (team.instance(), team.instance());
    let session = begin(&one, 2_000);
    hold(&one, &session, "b");
    let path = format!("/v1/sessions/{session}/events?bound=true");
    let mut old = Events::follow(&one.address, &path, &[]);
    old.until("kept");
    let mut new = Events::follow(&two.address, &path, &[]);
    new.until("kept");
    drop(old);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(3) {
        assert_eq!(new.until("kept")["locks"], 1);
    }
    drop(new);
    eventually("the end of the session", || (!one.is_held("b")).then_some(()));
}

/// An acquire that waits while its session ends leaves no hold, whichever instance it waits at.
#[test]
fn h394_no_hold_outlives_the_end_of_its_session() {
    let server = redis();
    let team = Team::at(&server.url());
    let (one, two) = (team.instance(), team.instance());
    let other = one.hold("x", r#"{"ttl_ms": 60000}"#);
    let session = begin(&one, 60_000);
    let body = json!({ "session": session, "wait_ms": 30_000 }).to_string();
    let waiting = two.wait_for("x", &[], &body);
    end(&one, &session).is(200);
    one.release(&other).is(200);
    waiting.answer().is(410);
    eventually("a free lock", || (!one.is_held("x")).then_some(()));
}

#[test]
fn h395_a_session_belongs_to_its_token_and_is_no_hold() {
    let server = redis();
    let team = Team::at(&server.url());
    let tokens = security::usual(&team.folder);
    let service = team.with(&["--tokens", &tokens]);
    let [web, ops] = [security::WEB, security::OPS].map(security::bearer);
    let ask = |auth: &str, line: &str, body: &str| {
        service.address.ask(line, &[("Authorization", auth)], body)
    };
    let session = ask(&web, "POST /v1/sessions", r#"{"ttl_ms": 20000}"#).is(200).get("session");
    let body = json!({ "session": session }).to_string();
    let hold = ask(&web, "POST /v1/locks/shop%2Fx", &body).is(200).get("hold");
    ask(&web, "POST /v1/locks/office", &body).is(403);
    let unknown = ask(&web, "POST /v1/sessions/0/renew", "").is(404).json();
    let refused = |auth: &str, id: &str| {
        for line in [
            "POST /v1/sessions/ID/renew",
            "GET /v1/sessions/ID",
            "DELETE /v1/sessions/ID",
            "GET /v1/sessions/ID/events",
        ] {
            let answer = ask(auth, &line.replace("ID", id), "");
            assert_eq!(answer.is(404).json(), unknown, "{line}");
        }
        let body = json!({ "session": id }).to_string();
        assert_eq!(ask(auth, "POST /v1/locks/shop%2Fy", &body).is(404).json(), unknown);
    };
    // Of another token; cut; changed; a hold's.
    refused(&ops, &session);
    for at in (0..session.len()).step_by(7) {
        let mut text = session.clone().into_bytes();
        text[at] = if text[at] == b'A' { b'B' } else { b'A' };
        refused(&web, &String::from_utf8(text).unwrap());
        if at > 0 {
            refused(&web, &session[..at]);
        }
    }
    refused(&web, &hold);
    // A session is no hold.
    for line in ["POST /v1/holds/ID/renew", "GET /v1/holds/ID", "DELETE /v1/holds/ID"] {
        ask(&web, &line.replace("ID", &session), "").is(404).kind("NotFound");
    }
    // Others list neither.
    for line in ["GET /v1/sessions", "GET /v1/holds"] {
        let text = ask(&ops, line, "").is(200).text.clone();
        assert!(!text.contains("shop/x") && !text.contains("latchwork-session"), "{text}");
    }
    let listed = ask(&web, "GET /v1/holds", "").is(200).json();
    assert_eq!(listed["holds"][0]["name"], "shop/x", "{listed}");
    assert!(!listed.to_string().contains(&hold), "an id");
    assert_eq!(ask(&web, "GET /v1/sessions", "").is(200).json()["sessions"][0]["locks"], 1);
    assert_eq!(
        ask(&web, &format!("DELETE /v1/sessions/{session}"), "").is(200).number("released"),
        1
    );
}

#[test]
fn bad_fields_of_sessions_are_named() {
    let server = redis();
    let service = Team::at(&server.url()).instance();
    let session = begin(&service, 20_000);
    let with = |more: Value| {
        let mut body = json!({ "session": session });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        service.lock("x", &body.to_string())
    };
    let named = |answer: Answer, field: &str| {
        answer.is(400).kind("Invalid");
        assert!(answer.get("error").starts_with(field), "{field}: {answer:?}");
    };
    named(with(json!({ "ttl_ms": 5_000 })), "ttl_ms:");
    named(with(json!({ "max_hold_ms": 5_000 })), "max_hold_ms:");
    named(with(json!({ "value": "v".repeat(1_023) })), "value:");
    let nested = |levels: usize| {
        let list = format!("{}\"[[\"{}", "[".repeat(levels), "]".repeat(levels));
        json!({ "value": serde_json::from_str::<Value>(&list).unwrap() })
    };
    named(with(nested(17)), "value:");
    named(with(json!({ "session": 5 })), "session:");
    named(service.ask("POST /v1/sessions", r#"{"ttl_ms": 5}"#), "ttl_ms:");
    named(service.ask("POST /v1/sessions", r#"{"session": "x"}"#), "body:");
    named(
        service.ask("POST /v1/sessions", &json!({ "holder": "h".repeat(1_025) }).to_string()),
        "holder:",
    );
    named(service.ask("POST /v1/sessions", "[5000]"), "body:");
    named(service.lock("latchwork-session%2Fx", "{}"), "name:");
    named(service.ask("GET /v1/holds?limit=0", ""), "limit:");
    named(service.ask(&format!("GET /v1/sessions/{session}/events?bound=perhaps"), ""), "query:");
    let long = json!({ "session": session, "locks": [{ "name": "n".repeat(9_000) }] });
    named(service.ask("POST /v1/holds", &long.to_string()), "session:");
    with(json!({ "value": "v".repeat(1_022) })).is(200);
    service.lock("y", &nested(16).to_string()).is(200);
    // It would end the session at once.
    let events = format!("HEAD /v1/sessions/{session}/events?bound=true");
    assert_eq!(service.ask(&events, "").status, 405);
    assert_eq!(names(&renew(&service, &session), "held"), ["x"]);
}

/// ZooKeeper ties a claim to the session of the process that acquired it.
#[test]
fn a_store_without_tickets_says_that_it_has_no_sessions() {
    let options = latchwork_services::ZooKeeperOptions::new();
    let server = latchwork_services::ZooKeeperServer::start(&options).unwrap();
    let service = Service::start(&["--store", &server.url()]);
    let refused = service.ask("POST /v1/sessions", "");
    refused.is(422).kind("Unsupported");
    refused.step("renew each hold, or use another store than ZooKeeper");
    service.hold("x", "{}");
    assert_eq!(names(&service.ask("GET /v1/holds", ""), "holds"), ["x"]);
}

/// Without a shared key, an instance knows all holds of its sessions, so it does not search the store.
#[test]
fn a_session_without_a_seal_key_lasts_as_long_as_its_service() {
    let server = redis();
    let service = Service::start(&["--store", &server.url()]);
    let session = begin(&service, 2_000);
    let kept = hold(&service, &session, "a");
    hold(&service, &session, "b");
    service.release(&kept).is(200);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(4) {
        assert_eq!(names(&renew(&service, &session), "held"), ["b"]);
        sleep(Duration::from_millis(500));
    }
    assert_eq!(end(&service, &session).is(200).number("released"), 1);
    let other = Service::start(&["--store", &server.url()]);
    renew(&other, &session).is(404);
}

#[test]
fn a_stream_keeps_a_session_and_a_bound_one_ends_with_it() {
    let server = redis();
    let team = Team::at(&server.url());
    let (one, two) = (team.instance(), team.instance());
    let follow = |service: &Service, session: &str, bound: bool| {
        let path = format!("/v1/sessions/{session}/events?bound={bound}");
        Events::follow(&service.address, &path, &[])
    };
    let free = begin(&one, 3_000);
    hold(&one, &free, "free");
    let start = Instant::now();
    let mut stream = follow(&one, &free, false);
    let first = stream.until("kept");
    let lasted = start.elapsed().as_millis();
    assert_eq!(first["held"][0]["name"], "free");
    let valid = first["valid_for_ms"].as_u64().unwrap();
    assert!(u128::from(valid) <= lasted + u128::from(whole(3_000)), "{first}, after {lasted} ms");
    hold(&two, &free, "more");
    while start.elapsed() < Duration::from_secs(5) {
        let kept = stream.until("kept");
        let (valid, lasted) = (kept["valid_for_ms"].as_u64().unwrap(), start.elapsed().as_millis());
        assert!(u128::from(valid) <= lasted + 3_500, "counted from the request: {kept}");
    }
    assert!(two.is_held("more") && two.is_held("free"));
    // By force, as the client learns.
    assert_eq!(at(&team.url, &["release", "--force", "more"]).code(), 0);
    let kept = loop {
        let kept = stream.until("kept");
        if kept["lost"] != json!([]) {
            break kept;
        }
    };
    assert_eq!((&kept["lost"][0]["name"], kept["locks"].as_u64()), (&json!("more"), Some(1)));
    end(&two, &free).is(200);
    assert!(stream.until("ended")["next_step"].is_string());
    let alone = Service::start(&["--store", &server.url()]);
    let bound = begin(&alone, 30_000);
    hold(&alone, &bound, "bound");
    let mut stream = follow(&alone, &bound, true);
    stream.until("kept");
    drop(stream);
    let start = Instant::now();
    eventually("the end of the session", || (!alone.is_held("bound")).then_some(()));
    stalls::in_time(start, Duration::from_secs(15));
    renew(&alone, &bound).is(410);
    // An instance that stops ends nothing.
    let bound = begin(&one, 30_000);
    hold(&one, &bound, "bound");
    let mut stream = follow(&two, &bound, true);
    stream.until("kept");
    two.process.signal(rustix::process::Signal::TERM);
    while stream.next().is_some() {}
    let Service { process, .. } = two;
    assert_eq!(process.finish().code(), 0);
    assert_eq!(renew(&one, &bound).is(200).number("locks"), 1);
}
