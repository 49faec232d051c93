//! Holds that their clients keep: any instance with the same key renews, shows, changes and releases them.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use latchwork_services::{
    KubernetesServer, Port, PostgresServer, RedisOptions, RedisServer, ZooKeeperOptions,
    ZooKeeperServer,
};
use latchwork_store::testing::stalls;
use rustix::process::Signal;
use serde_json::json;

use super::client::{AT_ONCE, Address, Answer, Events, Kept};
use super::{Service, instances, security};
use crate::common::{Running, Store, eventually};
use crate::doctor::at;
use crate::top::{row_of, top};

pub(super) const ONE: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
pub(super) const TWO: &str = "//79/Pv6+fj39vX08/Lx8O/u7ezr6uno5+bl5OPi4eA=";

/// A store, and the key that all instances share.
pub(super) struct Team {
    pub url: String,
    pub folder: tempfile::TempDir,
}

impl Team {
    pub(super) fn at(url: &str) -> Self {
        let team = Self { url: url.to_owned(), folder: tempfile::tempdir().unwrap() };
        team.write_key(ONE);
        team
    }

    pub(super) fn key_file(&self) -> PathBuf {
        self.folder.path().join("key")
    }

    pub(super) fn write_key(&self, text: &str) {
        fs::write(self.key_file(), text).unwrap();
        fs::set_permissions(self.key_file(), fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// Starts an instance.
    pub(super) fn instance(&self) -> Service {
        self.with(&[])
    }

    pub(super) fn with(&self, options: &[&str]) -> Service {
        let key = self.key_file().display().to_string();
        let own = ["--store", &self.url, "--seal-key-file", &key];
        Service::start(&[&own, options].concat())
    }
}

pub(super) fn redis() -> RedisServer {
    RedisServer::start(&RedisOptions::new()).unwrap()
}

fn postgres() -> PostgresServer {
    let server = PostgresServer::start().unwrap();
    assert_eq!(at(&server.url(), &["init"]).code(), 0);
    server
}

pub(super) fn kill(service: Service) {
    let Service { mut process, .. } = service;
    process.child.kill().unwrap();
    process.wait();
}

pub(super) fn ask(service: &Service, verb: &str, hold: &str) -> Answer {
    service.ask(&format!("POST /v1/holds/{hold}/{verb}"), "")
}

fn shown(service: &Service, hold: &str) -> Answer {
    service.ask(&format!("GET /v1/holds/{hold}"), "")
}

/// What a hold of this ttl gives at most: the ttl less the drift of the clocks.
pub(super) fn whole(ttl: u64) -> u64 {
    ttl - ttl / 100 - 2
}

pub(super) fn any_instance_keeps_a_hold(url: &str) {
    let team = Team::at(url);
    let (one, two) = (team.instance(), team.instance());
    let held = one.lock("x", r#"{"ttl_ms": 20000, "holder": "web"}"#);
    let (hold, token) = (held.is(200).get("hold"), held.get("token"));
    for answer in [two.renew(&hold), shown(&two, &hold), one.renew(&hold)] {
        assert_eq!(
            (answer.is(200).get("token"), answer.get("hold")),
            (token.clone(), hold.clone())
        );
        let valid = answer.number("valid_for_ms");
        assert!((whole(20_000) - 2_000..=whole(20_000)).contains(&valid), "{answer:?}");
    }
    kill(one);
    let renewed = two.renew(&hold);
    assert_eq!(renewed.is(200).number("valid_for_ms"), whole(20_000));
    two.lock("x", "{}").is(409);
    // One that has never seen it.
    let three = team.instance();
    assert_eq!(shown(&three, &hold).is(200).get("token"), token);
    three.renew(&hold).is(200);
    assert_eq!(three.release(&hold).is(200).json()["released"], true);
    assert!(!two.is_held("x"));
    for (service, kind) in [(&three, "Released"), (&two, "Lost")] {
        service.renew(&hold).is(410).kind(kind);
    }
}

#[test]
fn h375_any_instance_keeps_a_hold_on_redis() {
    any_instance_keeps_a_hold(&redis().url());
}

#[test]
fn h375_any_instance_keeps_a_hold_on_postgres() {
    any_instance_keeps_a_hold(&postgres().url());
}

/// The instances are processes of one machine.
#[test]
fn h375_any_instance_keeps_a_hold_on_files() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}", folder.path().join("locks").display());
    assert_eq!(at(&url, &["run", "--create", "x", "--", "true"]).code(), 0);
    any_instance_keeps_a_hold(&url);
}

#[test]
fn h375_any_instance_keeps_a_hold_on_kubernetes() {
    let server = KubernetesServer::start().unwrap();
    server.make_namespace("tickets").unwrap();
    any_instance_keeps_a_hold(&server.url("tickets").unwrap());
}

/// A balancer sends each request to the next instance; each is stopped and started again in turn.
/// Each client of the API server counts a lease from when it first saw it. An instance that has seen it late must not
/// promise what others no longer see.
#[test]
fn a_look_at_another_instance_promises_no_more_than_others_see_on_kubernetes() {
    let server = KubernetesServer::start().unwrap();
    server.make_namespace("looks").unwrap();
    let team = Team::at(&server.url("looks").unwrap());
    let one = team.instance();
    let ttl = Duration::from_secs(8);
    let session = one.ask("POST /v1/sessions", r#"{"ttl_ms": 8000}"#).is(200).get("session");
    one.hold("in", &json!({ "session": session }).to_string());
    let hold = one.hold("x", r#"{"ttl_ms": 8000}"#);
    let granted = Instant::now();
    let own = shown(&one, &hold).is(200).number("valid_for_ms");
    assert!(own > 5_000, "the instance that has granted it knows: {own}");
    let two = team.instance();
    sleep(Duration::from_secs(2));
    for line in [format!("GET /v1/holds/{hold}"), format!("GET /v1/sessions/{session}")] {
        for service in [&one, &two] {
            let looked = Instant::now();
            let valid =
                Duration::from_millis(service.ask(&line, "").is(200).number("valid_for_ms"));
            assert!(looked + valid <= granted + ttl, "{line}: {valid:?}");
        }
    }
    two.renew(&hold).is(200);
    assert!(shown(&two, &hold).is(200).number("valid_for_ms") > 5_000);
}

pub(super) fn a_rolling_restart_loses_no_hold(url: &str) {
    let team = Team::at(url);
    let mut services = vec![team.instance(), team.instance()];
    let addresses: Vec<_> = services.iter().map(|it| it.address.clone()).collect();
    let held = services[0].lock("x", r#"{"ttl_ms": 6000}"#);
    let (hold, token) = (held.is(200).get("hold"), held.get("token"));
    let (is_done, renewals) = (AtomicBool::new(false), AtomicU32::new(0));
    scope(|scope| {
        let client = scope.spawn(|| {
            let line = format!("POST /v1/holds/{hold}/renew");
            for address in addresses.iter().cycle() {
                if is_done.load(Ordering::SeqCst) {
                    return;
                }
                // An instance that restarts refuses the connection, or answers 503.
                let Some(answer) = try_ask(address, &line) else { continue };
                if answer.status == 503 {
                    continue;
                }
                assert_eq!(answer.is(200).get("token"), token);
                renewals.fetch_add(1, Ordering::SeqCst);
                sleep(Duration::from_millis(50));
            }
        });
        let key = team.key_file().display().to_string();
        for _ in 0..4 {
            let service = services.remove(0);
            service.process.signal(Signal::TERM);
            let start = Instant::now();
            let service = service.restarted(&["--store", &team.url, "--seal-key-file", &key]);
            stalls::in_time(start, AT_ONCE);
            service.lock("x", "{}").is(409).kind("TimedOut");
            services.push(service);
            let before = renewals.load(Ordering::SeqCst);
            let is_renewed = || renewals.load(Ordering::SeqCst) >= before + 4;
            eventually("renewals at both", || is_renewed().then_some(()));
        }
        is_done.store(true, Ordering::SeqCst);
        client.join().unwrap();
    });
    services[1].release(&hold).is(200);
    assert!(!services[0].is_held("x"));
}

#[test]
fn h375_a_rolling_restart_loses_no_hold() {
    a_rolling_restart_loses_no_hold(&redis().url());
}

/// `None` if the service does not answer.
pub(super) fn try_ask(address: &Address, line: &str) -> Option<Answer> {
    let Address::Tcp(port) = address else { unreachable!() };
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", *port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let request = super::client::request(line, &[], "");
    std::io::Write::write_all(&mut stream, request.as_bytes()).ok()?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text).ok()?;
    super::client::read(&text[..]).ok()
}

#[test]
fn h376_a_ticket_that_is_not_whole_and_own_is_unknown() {
    let (server, other) = (redis(), redis());
    let (team, elsewhere) = (Team::at(&server.url()), Team::at(&other.url()));
    let tokens = security::usual(&team.folder);
    let service = team.with(&["--tokens", &tokens]);
    let auth = security::bearer(security::WEB);
    let headers = [("Authorization", &*auth)];
    let held = service.address.ask("POST /v1/locks/shop%2Fx", &headers, r#"{"ttl_ms": 60000}"#);
    let hold = held.is(200).get("hold");
    let try_all = |service: &Service, hold: &str, headers: &[(&str, &str)]| -> Vec<Answer> {
        let ask = |line: String| service.address.ask(&line, headers, "");
        vec![
            ask(format!("POST /v1/holds/{hold}/renew")),
            ask(format!("GET /v1/holds/{hold}")),
            ask(format!("POST /v1/holds/{hold}/upgrade")),
            ask(format!("POST /v1/holds/{hold}/succeed")),
            ask(format!("DELETE /v1/holds/{hold}")),
        ]
    };
    let unknown = service.address.ask("GET /v1/holds/0", &headers, "").is(404).json();
    let refused = |service: &Service, hold: &str, headers: &[(&str, &str)]| {
        for answer in try_all(service, hold, headers) {
            assert_eq!(answer.is(404).json(), unknown, "{hold}");
        }
    };
    // Each byte of the text, and each length.
    let mut connection = Kept::open(&service.address);
    for at in 0..hold.len() {
        let mut text = hold.clone().into_bytes();
        text[at] = if text[at] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(text).unwrap();
        for text in [changed, hold[..at].to_owned()] {
            let line = format!(
                "DELETE /v1/holds/{text}x HTTP/1.1\r\nHost: localhost\r\nAuthorization: {auth}\r\n\r\n"
            );
            connection.write(line.replace("x HTTP", " HTTP").as_bytes());
            let answer = connection.answer().unwrap();
            assert!([404, 405].contains(&answer.status), "{at}: {answer:?}");
        }
    }
    // Another owner, another key, another namespace, another store.
    let ops = security::bearer(security::OPS);
    refused(&service, &hold, &[("Authorization", &ops)]);
    refused(&service, &hold, &[]);
    let key = team.folder.path().join("other");
    fs::write(&key, TWO).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let key = key.display().to_string();
    let options = ["--store", &team.url, "--tokens", &tokens, "--seal-key-file", &key];
    refused(&Service::start(&options), &hold, &headers);
    refused(&team.with(&["--tokens", &tokens, "--namespace", "n"]), &hold, &headers);
    for answer in try_all(&elsewhere.with(&["--tokens", &tokens]), &hold, &headers) {
        assert!(answer.status == 410 || answer.status == 400, "{answer:?}");
    }
    // None of them did anything.
    let line = format!("POST /v1/holds/{hold}/renew");
    service.address.ask(&line, &headers, "").is(200);
    let line = format!("DELETE /v1/holds/{hold}");
    service.address.ask(&line, &headers, "").is(200);
    // A replay does not touch the next holder.
    let body = r#"{"ttl_ms": 60000}"#;
    let next = service.address.ask("POST /v1/locks/shop%2Fx", &headers, body).is(200).get("hold");
    for service in [&service, &team.with(&["--tokens", &tokens])] {
        let last = try_all(service, &hold, &headers);
        assert!(last[..4].iter().all(|it| [400, 410].contains(&it.status)), "{last:?}");
        service.address.ask(&format!("POST /v1/holds/{next}/renew"), &headers, "").is(200);
    }
}

/// The same key for two teams: whoever is asked cannot know the hold, says so, and harms it nowhere.
#[test]
fn a_ticket_of_another_store_is_lost_there_and_goes_on_here() {
    let (here, there) = (redis(), redis());
    let (one, other) = (Team::at(&here.url()).instance(), Team::at(&there.url()).instance());
    let mut events = Events::follow(&other.address, "/v1/events", &[]);
    let hold = one.hold("x", r#"{"ttl_ms": 20000}"#);
    shown(&other, &hold).is(410).kind("Lost");
    other.renew(&hold).is(410).kind("Lost");
    other.release(&hold).is(410).kind("Unconfirmed");
    other.hold("x", "{}");
    one.renew(&hold).is(200);
    while let Some((word, event)) = events.next() {
        assert!(word != "lost" && word != "released", "{event}");
        if word == "granted" {
            break;
        }
    }
    one.release(&hold).is(200);
}

pub(super) fn a_forced_release_shows_at_the_next_renewal(url: &str) {
    let team = Team::at(url);
    let service = team.instance();
    let hold = service.hold("x", r#"{"ttl_ms": 60000}"#);
    service.renew(&hold).is(200);
    assert_eq!(at(url, &["release", "--force", "x"]).code(), 0);
    let next = service.hold("x", r#"{"ttl_ms": 60000}"#);
    let lost = service.renew(&hold);
    lost.is(410).kind("Lost");
    assert_eq!(lost.get("reason"), "taken");
    service.release(&hold).is(410);
    service.renew(&next).is(200);
    // By another instance, with a reason.
    let socket = team.folder.path().join("http.sock");
    let other = team.with(&["--listen", &format!("unix:{}", socket.display())]);
    let admin = Address::Unix(socket);
    admin.ask("POST /v1/locks/x/force-release", &[], r#"{"reason": "a trial"}"#).is(200);
    service.renew(&next).is(410).kind("Lost");
    drop(other);
}

#[test]
fn h377_a_forced_release_shows_at_the_next_renewal_on_redis() {
    a_forced_release_shows_at_the_next_renewal(&redis().url());
}

#[test]
fn h377_a_forced_release_shows_at_the_next_renewal_on_postgres() {
    a_forced_release_shows_at_the_next_renewal(&postgres().url());
}

#[test]
fn h378_a_silent_client_is_gone_at_the_store_after_its_ttl() {
    let server = redis();
    let team = Team::at(&server.url());
    let service = team.instance();
    let mut events = Events::follow(&service.address, "/v1/events", &[]);
    let start = Instant::now();
    let held = service.lock("x", r#"{"ttl_ms": 3000}"#);
    let valid = Duration::from_millis(held.is(200).number("valid_for_ms"));
    let granted = Instant::now();
    let left = service.ask("GET /v1/locks/x", "").json()["holders"][0]["remaining_ms"].as_u64();
    assert!(left.unwrap() <= 3_010, "{left:?}");
    let next = service.lock("x", r#"{"wait_ms": 20000, "ttl_ms": 10000}"#);
    assert!(start.elapsed() >= valid);
    stalls::in_time(granted, Duration::from_millis(4_500));
    let lost = events.until("lost");
    assert_eq!((&lost["token"], &lost["reason"]), (&held.json()["token"], &"not_renewed".into()));
    let late = service.renew(&held.get("hold"));
    assert_eq!(late.is(410).get("reason"), "not_renewed");
    service.release(&next.is(200).get("hold")).is(200);
}

/// What people look at in an incident is the time left of the client, never more than its ttl.
#[test]
fn the_command_shows_the_time_left_of_a_client() {
    let service = Service::start(&[]);
    service.hold("x", r#"{"ttl_ms": 60000}"#);
    for words in [&["--json", "ls"][..], &["--json", "show", "x"]] {
        let shown = service.store.output(words).stdout;
        let mut shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        if let Some(all) = shown.as_array_mut() {
            shown = all.remove(0);
        }
        let left = shown["holders"][0]["remaining_ms"].as_u64();
        assert!(left.is_some_and(|it| (30_000..=60_010).contains(&it)), "{shown}");
    }
    let terminal = top(&service.store, 24, 110, "top");
    let row = terminal.sees("the lock", |screen| row_of(screen, "x "));
    let left = row.split_whitespace().rev().nth(1).unwrap().strip_suffix('s');
    assert!(left.is_some_and(|it| (30..60).contains(&it.parse().unwrap())), "{row}");
}

/// What another instance renews or releases is not lost.
#[test]
fn an_instance_tells_no_loss_of_what_another_one_keeps() {
    let server = redis();
    let team = Team::at(&server.url());
    let (one, two) = (team.instance(), team.instance());
    let mut events = Events::follow(&one.address, "/v1/events", &[]);
    let kept = one.lock("kept", r#"{"ttl_ms": 2000}"#).is(200).get("hold");
    let released = one.lock("released", r#"{"ttl_ms": 2000}"#).is(200).get("hold");
    two.release(&released).is(200);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(5) {
        two.renew(&kept).is(200);
        sleep(Duration::from_millis(400));
    }
    two.release(&kept).is(200);
    one.hold("last", "{}");
    let mut ends = Vec::new();
    let is_last = |word: &str, name: &str| (word, name) == ("released", "kept");
    while let Some((word, data)) = events.next() {
        let name = data["name"].as_str().unwrap_or_default().to_owned();
        assert_ne!(word, "lost", "{data}");
        if word == "released" {
            assert_eq!(data["by"], "store", "{data}");
            ends.push(name.clone());
        }
        if is_last(&word, &name) {
            break;
        }
    }
    assert_eq!(ends, ["released", "kept"]);
    for (service, held) in [(&one, "latchwork_held 1\n"), (&two, "latchwork_held 0\n")] {
        eventually("the gauge", || {
            service.ask("GET /metrics", "").text.contains(held).then_some(())
        });
    }
}

#[test]
fn no_answer_promises_more_than_the_ttl() {
    let server = redis();
    let service = Team::at(&server.url()).instance();
    for ttl in [3_000, 15_000, 60_000] {
        let body = format!(r#"{{"ttl_ms": {ttl}}}"#);
        let name = format!("x{ttl}");
        let key = [("Idempotency-Key", &*name)];
        let line = format!("POST /v1/locks/{name}");
        let held = service.address.ask(&line, &key, &body);
        let hold = held.is(200).get("hold");
        let mut answers = vec![held];
        for _ in 0..20 {
            answers.push(service.renew(&hold));
            answers.push(shown(&service, &hold));
            answers.push(service.address.ask(&line, &key, &body));
        }
        for answer in answers {
            assert!(answer.is(200).number("valid_for_ms") <= whole(ttl), "{answer:?}");
        }
    }
}

/// The new key seals, and the old one opens until it is removed.
#[test]
fn keys_are_replaced_without_a_loss() {
    let server = redis();
    let team = Team::at(&server.url());
    let (one, two) = (team.instance(), team.instance());
    let old = one.hold("old", r#"{"ttl_ms": 60000}"#);
    let reload = |service: &Service, text: &str| {
        service.process.signal(Signal::HUP);
        service.process.stderr.until(text);
    };
    // First all of them can open what the new key seals.
    team.write_key(&format!("{ONE}\n{TWO}\n"));
    reload(&one, "the seal keys were read again");
    reload(&two, "the seal keys were read again");
    team.write_key(&format!("{TWO}\n{ONE}\n"));
    reload(&one, "the seal keys were read again");
    let new = one.hold("new", r#"{"ttl_ms": 60000}"#);
    for hold in [&old, &new] {
        two.renew(hold).is(200);
    }
    team.write_key("nothing");
    reload(&one, "the seal keys stay as they were");
    one.renew(&new).is(200);
    team.write_key(TWO);
    reload(&two, "the seal keys were read again");
    two.renew(&old).is(404).kind("NotFound");
    two.renew(&new).is(200);
    fs::set_permissions(team.key_file(), fs::Permissions::from_mode(0o644)).unwrap();
    let key = team.key_file().display().to_string();
    let refused = at(&team.url, &["serve", "--listen", "127.0.0.1:0", "--seal-key-file", &key]);
    assert_eq!(refused.code(), 64, "{refused:?}");
    assert!(refused.stderr.contains("other users may read the key"), "{refused:?}");
}

/// The first request was another instance's, and its answer is not known here.
#[test]
fn h379_a_repeat_at_another_instance_is_never_a_false_success() {
    let server = redis();
    let team = Team::at(&server.url());
    let (one, two) = (team.instance(), team.instance());
    let lock = one.hold("x", r#"{"ttl_ms": 60000}"#);
    one.release(&lock).is(200);
    two.release(&lock).is(410).kind("Unconfirmed");
    two.release(&lock).is(410).kind("Unconfirmed");
    one.release(&lock).is(200);
    let begin = |service: &Service| {
        let body = r#"{"every": "1h", "ttl_ms": 60000}"#;
        let begun = service.ask("POST /v1/once/job", body);
        begun.is(200);
        begun
    };
    let begun =
        |service: &Service| begin(service).json()["hold"]["hold"].as_str().unwrap().to_owned();
    let failed = begun(&one);
    one.release(&failed).is(200);
    let late = ask(&two, "succeed", &failed);
    late.is(410).kind("Unconfirmed");
    late.step("the task may run again: begin it to see whether it is done");
    let done = begun(&two);
    assert_eq!(ask(&one, "succeed", &done).is(200).json()["closed"], true);
    ask(&two, "succeed", &done).is(410).kind("Unconfirmed");
    assert_eq!(begin(&two).get("outcome"), "done");
    // A loss is none either.
    let lost = one.hold("y", r#"{"ttl_ms": 60000}"#);
    assert_eq!(at(&team.url, &["release", "--force", "y"]).code(), 0);
    for service in [&two, &one] {
        service.release(&lost).is(410);
    }
}

pub(super) fn another_instance_upgrades_and_downgrades(url: &str) {
    let team = Team::at(url);
    let (one, two) = (team.instance(), team.instance());
    let read = r#"{"mode": "read", "ttl_ms": 20000}"#;
    let first = one.lock("x", read);
    let hold = first.is(200).get("hold");
    let upgraded = ask(&two, "upgrade", &hold);
    let written = upgraded.is(200).get("hold");
    assert_ne!(written, hold);
    let number = |answer: &Answer| answer.get("token").parse::<u64>().unwrap();
    assert!(number(&upgraded) > number(&first));
    // As if the answer had been lost.
    assert_eq!(ask(&two, "upgrade", &hold).is(200).get("token"), upgraded.get("token"));
    two.renew(&hold).is(410).kind("Released");
    one.renew(&hold).is(410).kind("Lost");
    one.lock("x", read).is(409);
    one.renew(&written).is(200);
    let downgraded = ask(&one, "downgrade", &written);
    assert!(number(downgraded.is(200)) > number(&upgraded));
    let other = two.hold("x", read);
    let hold = downgraded.get("hold");
    // It does not fail, and the hold stays.
    ask(&two, "upgrade", &hold).is(409).kind("TimedOut");
    one.renew(&hold).is(200);
    one.release(&other).is(200);
    two.release(&hold).is(200);
    assert!(!one.is_held("x"));
}

#[test]
fn another_instance_upgrades_and_downgrades_a_hold() {
    another_instance_upgrades_and_downgrades(&redis().url());
}

#[test]
fn a_service_says_whether_its_holds_outlive_it() {
    let server = redis();
    let zookeeper = ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap();
    let (etcd, (_servers, redlock)) = (instances::etcd(), instances::redlock(instances::GUARDED));
    let tells = |options: &[&str], line: Option<&str>| {
        let (store, port) = (Store::new(), Port::reserve().unwrap());
        let listen = format!("127.0.0.1:{}", port.number());
        let all = [&["serve", "--listen", &listen], options].concat();
        let process = Running::start(store.latchwork(&all));
        let first = process.stderr.next().unwrap();
        assert_eq!(first.contains("holds end with this process"), line.is_some(), "{first}");
        assert!(first.contains(line.unwrap_or("ready")), "{first}");
        if line.is_some() {
            process.stderr.until("ready");
        }
        let told = Address::Tcp(port.number()).ask("GET /v1/whoami", &[], "").is(200).json();
        assert_eq!(told["holds_outlive_service"], line.is_none(), "{options:?}");
    };
    let team = Team::at(&server.url());
    let key = team.key_file().display().to_string();
    tells(&["--store", &team.url, "--seal-key-file", &key], None);
    tells(&["--store", &team.url], Some("without --seal-key-file"));
    tells(&["--store", &etcd.url(), "--seal-key-file", &key], None);
    tells(&["--store", &redlock, "--seal-key-file", &key], None);
    let zookeeper = zookeeper.url();
    tells(&["--store", &zookeeper, "--seal-key-file", &key], Some("ties a lock to the process"));
}

/// With the same key, a service that was stopped or killed goes on with its holds; without one, their ids are unknown.
#[test]
fn holds_outlive_a_service_with_a_key() {
    let server = redis();
    let team = Team::at(&server.url());
    let one = team.instance();
    let hold = one.hold("x", r#"{"ttl_ms": 20000}"#);
    let start = Instant::now();
    one.process.signal(Signal::TERM);
    let Service { process, .. } = one;
    assert_eq!(process.finish().code(), 0);
    stalls::in_time(start, AT_ONCE);
    let two = team.instance();
    two.renew(&hold).is(200);
    kill(two);
    let three = team.instance();
    three.release(&hold).is(200);
    let without = Service::start(&["--store", &team.url]);
    let hold = without.hold("y", r#"{"ttl_ms": 20000}"#);
    without.renew(&hold).is(200);
    kill(without);
    let again = Service::start(&["--store", &team.url]);
    // H414: a balancer may have chosen an instance with another key.
    let unknown = again.renew(&hold);
    let step = unknown.is(404).kind("NotFound").get("next_step");
    assert!(step.starts_with("behind a balancer, ask the instance that granted it, or give all instances the same --seal-key-file"), "{step}");
    three.renew(&hold).is(404);
    assert!(three.is_held("y"));
}

#[test]
fn the_longest_hold_counts_at_every_instance() {
    let server = redis();
    let team = Team::at(&server.url());
    let (one, two) = (team.instance(), team.instance());
    let start = Instant::now();
    let held = one.lock("x", r#"{"ttl_ms": 10000, "max_hold_ms": 3000}"#);
    assert!(held.is(200).number("valid_for_ms") <= 3_000, "{held:?}");
    let hold = held.get("hold");
    sleep(Duration::from_millis(1_500));
    let renewed = two.renew(&hold);
    assert!(renewed.is(200).number("valid_for_ms") <= 1_510, "{renewed:?}");
    let next = one.lock("x", r#"{"wait_ms": 20000, "ttl_ms": 5000}"#);
    next.is(200);
    let waited = start.elapsed();
    assert!(
        waited >= Duration::from_millis(2_900) && waited < Duration::from_secs(5),
        "{waited:?}"
    );
    for service in [&one, &two] {
        let over = service.renew(&hold);
        assert_eq!(over.is(410).get("reason"), "max_hold");
    }
}

/// The ticket has its names, so they are checked at each renewal.
#[test]
fn h376_a_token_whose_prefixes_were_narrowed_renews_nothing_else() {
    let server = redis();
    let team = Team::at(&server.url());
    let of = |prefix: &str| {
        let text = format!(
            r#"{{"tokens": [{{"name": "web", "token": "{}", "rights": ["lock"], "prefixes": ["{prefix}"]}}]}}"#,
            security::WEB
        );
        security::tokens(&team.folder, &text).display().to_string()
    };
    let service = team.with(&["--tokens", &of("shop/")]);
    let auth = security::bearer(security::WEB);
    let ask = |line: &str| service.address.ask(line, &[("Authorization", &*auth)], "");
    let hold = ask("POST /v1/locks/shop%2Fx").is(200).get("hold");
    // The instance keeps a hold with so long a name itself.
    let long = format!("POST /v1/locks/shop%2F{}", "n".repeat(6_000));
    let kept = ask(&long).is(200).get("hold");
    of("office/");
    service.process.signal(Signal::HUP);
    service.process.stderr.until("the tokens were read again");
    ask(&format!("POST /v1/holds/{hold}/renew")).is(403).kind("Forbidden");
    ask(&format!("POST /v1/holds/{hold}/upgrade")).is(403);
    ask(&format!("POST /v1/holds/{kept}/renew")).is(403).kind("Forbidden");
    for hold in [hold, kept] {
        ask(&format!("DELETE /v1/holds/{hold}")).is(200);
    }
}

/// A name is part of the ticket, which is part of a path. With a longer one, the instance keeps the hold.
#[test]
fn a_long_name_is_kept_by_the_instance() {
    let server = redis();
    let team = Team::at(&server.url());
    let (one, two) = (team.instance(), team.instance());
    for (length, outlives) in [(4_700, true), (6_000, false)] {
        let name = "n".repeat(length);
        let body = format!(r#"{{"ttl_ms": 20000, "locks": [{{"name": "{name}"}}]}}"#);
        let hold = one.ask("POST /v1/holds", &body).is(200).get("hold");
        assert_eq!(hold.len() > 32, outlives, "{length}");
        two.renew(&hold).is(if outlives { 200 } else { 404 });
        assert_eq!(one.renew(&hold).is(200).number("ttl_ms"), 20_000);
        one.release(&hold).is(200);
    }
}

/// A grant that a store pushes to a waiter lasts for moments at first; what its client gets is the whole ttl.
pub(super) fn a_grant_after_a_wait_has_the_whole_ttl(url: &str) {
    let team = Team::at(url);
    let (one, two) = (team.instance(), team.instance());
    let long = r#"{"ttl_ms": 60000, "wait_ms": 30000}"#;
    let left = |name: &str| {
        let seen = one.ask(&format!("GET /v1/locks/{name}"), "");
        seen.is(200).json()["holders"][0]["remaining_ms"].as_u64().unwrap()
    };
    for service in [&one, &two] {
        let first = one.hold("x", r#"{"ttl_ms": 60000}"#);
        let waiting = service.wait_for("x", &[], long);
        one.release(&first).is(200);
        let next = waiting.answer();
        assert!(next.is(200).number("valid_for_ms") > 55_000, "{next:?}");
        assert!(left("x") > 55_000);
        service.release(&next.get("hold")).is(200);
    }
    // So has an upgrade that waited for another reader.
    let read = r#"{"ttl_ms": 60000, "mode": "read"}"#;
    let [mine, other] = ["mine", "other"].map(|_| one.hold("rw", read));
    let upgrade =
        one.address.send(&format!("POST /v1/holds/{mine}/upgrade"), &[], r#"{"wait_ms": 30000}"#);
    eventually("an upgrade", || (one.waiters("rw") == 1).then_some(()));
    two.release(&other).is(200);
    let write = super::client::read(upgrade).unwrap();
    assert!(write.is(200).number("valid_for_ms") > 55_000, "{write:?}");
    assert!(left("rw") > 55_000);
}

#[test]
fn h380_a_grant_after_a_wait_has_the_whole_ttl_on_redis() {
    a_grant_after_a_wait_has_the_whole_ttl(&redis().url());
}

#[test]
fn h380_a_grant_after_a_wait_has_the_whole_ttl_on_postgres() {
    a_grant_after_a_wait_has_the_whole_ttl(&postgres().url());
}

/// Of several locks one was taken away: the hold is lost as a whole. Its client may never read the answer that says so,
/// and relies on the others until then.
#[test]
fn h381_what_is_left_of_a_lost_hold_ends_by_a_delete_or_with_its_lease() {
    let server = redis();
    let team = Team::at(&server.url());
    let (one, two) = (team.instance(), team.instance());
    let force = |name: &str| {
        assert_eq!(at(&server.url(), &["release", "--force", name]).code(), 0);
    };
    let body = r#"{"locks": [{"name": "a"}, {"name": "b"}], "ttl_ms": 60000}"#;
    let hold = one.ask("POST /v1/holds", body).is(200).get("hold");
    force("a");
    one.renew(&hold).is(410).kind("Lost");
    shown(&two, &hold).is(410);
    sleep(Duration::from_millis(300));
    assert!(two.is_held("b"), "the answer before promised a minute");
    one.release(&hold).is(410);
    eventually("a free lock", || (!two.is_held("b")).then_some(()));
    // A session does not keep it any longer.
    let session = one.ask("POST /v1/sessions", r#"{"ttl_ms": 2000}"#).is(200).get("session");
    let body = json!({ "locks": [{ "name": "c" }, { "name": "d" }], "session": session });
    one.ask("POST /v1/holds", &body.to_string()).is(200);
    force("c");
    eventually("a free lock", || {
        let renewed = one.ask(&format!("POST /v1/sessions/{session}/renew"), "").is(200).json();
        assert_eq!(renewed["held"], json!([]), "{renewed}");
        (!two.is_held("d")).then_some(())
    });
}

/// The client's guard renews while an upgrade waits, but never for longer than the longest hold.
#[test]
fn an_upgrade_waits_no_longer_than_the_hold_may_last() {
    let server = redis();
    let team = Team::at(&server.url());
    let service = team.instance();
    let start = Instant::now();
    let read = r#"{"ttl_ms": 1000, "max_hold_ms": 2000, "mode": "read"}"#;
    let mine = service.hold("rw", read);
    let _other = service.hold("rw", r#"{"ttl_ms": 60000, "mode": "read"}"#);
    let upgrade = format!("POST /v1/holds/{mine}/upgrade");
    let refused = service.ask(&upgrade, r#"{"wait_ms": 15000}"#);
    assert!([409, 410].contains(&refused.status), "{refused:?}");
    stalls::in_time(start, Duration::from_secs(5));
}
