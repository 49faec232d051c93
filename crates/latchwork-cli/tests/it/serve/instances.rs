//! Several instances on the stores whose holds were once tied to a process: etcd and Redlock.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use latchwork_services::{Data, Direction, EtcdOptions, EtcdServer, Proxy, RedisServer};
use rustix::process::Signal;

use super::Service;
use super::client::Answer;
use super::proxies;
use super::tickets::{
    ONE, TWO, Team, a_forced_release_shows_at_the_next_renewal,
    a_grant_after_a_wait_has_the_whole_ttl, a_rolling_restart_loses_no_hold,
    another_instance_upgrades_and_downgrades, any_instance_keeps_a_hold, ask, kill, redis,
};
use crate::common::eventually;
use crate::doctor::at;

pub(super) fn etcd() -> EtcdServer {
    EtcdServer::start(&EtcdOptions::new()).unwrap()
}

/// Long enough for a task that is closed for an hour.
pub(super) const GUARDED: &str = "max_ttl=2h";

/// Three servers that are ready for locks, and their address with these options.
pub(super) fn redlock(options: &str) -> ([RedisServer; 3], String) {
    let servers = [(); 3].map(|()| redis());
    let hosts: Vec<_> =
        servers.iter().map(|one| one.url().trim_start_matches("redis://").to_owned()).collect();
    let url = format!("redlock://{}/0?{options}", hosts.join(","));
    if options == GUARDED {
        assert_eq!(at(&url, &["init"]).code(), 0);
    }
    (servers, url)
}

#[test]
fn h430_any_instance_keeps_a_hold_on_etcd() {
    any_instance_keeps_a_hold(&etcd().url());
}

/// etcd counts whole seconds, two at least: the client relies on its ttl all the same, also after a wait.
#[test]
fn h430_no_answer_promises_more_than_the_ttl_on_etcd() {
    let server = etcd();
    let service = Team::at(&server.url()).instance();
    for ttl in [500, 2_200, 12_100] {
        let first = service.hold("x", r#"{"ttl_ms": 60000}"#);
        let body = format!(r#"{{"ttl_ms": {ttl}, "wait_ms": 3000}}"#);
        let (start, waiting) = (Instant::now(), service.wait_for("x", &[], &body));
        service.release(&first).is(200);
        let held = waiting.answer();
        let waited = start.elapsed().as_millis() as u64;
        assert!(held.is(200).number("valid_for_ms") <= ttl + waited, "{held:?} after {waited} ms");
        let hold = held.get("hold");
        for answer in [service.renew(&hold), service.ask(&format!("GET /v1/holds/{hold}"), "")] {
            assert!(answer.is(200).number("valid_for_ms") < ttl, "{answer:?}");
        }
        service.release(&hold).is(200);
    }
}

/// etcd rounds the rest of a lease down to whole seconds, and this one lasts 6. A look elsewhere promises what is left, and
/// no more.
#[test]
fn a_look_at_another_instance_promises_what_is_left_on_etcd() {
    let server = etcd();
    let team = Team::at(&server.url());
    let (one, two) = (team.instance(), team.instance());
    let asked = Instant::now();
    let hold = one.hold("x", r#"{"ttl_ms": 5000}"#);
    let (granted, lease) = (Instant::now(), Duration::from_secs(6));
    let mut least_left = Duration::MAX;
    while asked.elapsed() < Duration::from_secs(4) {
        let looked = Instant::now();
        let shown = two.ask(&format!("GET /v1/holds/{hold}"), "");
        let valid = Duration::from_millis(shown.is(200).number("valid_for_ms"));
        assert!(looked + valid <= granted + lease, "{shown:?}");
        least_left = least_left.min((asked + lease).saturating_duration_since(looked + valid));
        sleep(Duration::from_millis(100));
    }
    // Just before a second is over, only the drift is missing.
    assert!(least_left < Duration::from_secs(1), "{least_left:?}");
}

#[test]
fn h431_any_instance_keeps_a_hold_on_redlock() {
    let (_servers, url) = redlock(GUARDED);
    any_instance_keeps_a_hold(&url);
}

#[test]
fn h430_a_rolling_restart_loses_no_hold_on_etcd() {
    a_rolling_restart_loses_no_hold(&etcd().url());
}

#[test]
fn h431_a_rolling_restart_loses_no_hold_on_redlock() {
    let (_servers, url) = redlock(GUARDED);
    a_rolling_restart_loses_no_hold(&url);
}

#[test]
fn h430_a_forced_release_shows_at_the_next_renewal_on_etcd() {
    a_forced_release_shows_at_the_next_renewal(&etcd().url());
}

#[test]
fn h431_a_forced_release_shows_at_the_next_renewal_on_redlock() {
    let (_servers, url) = redlock(GUARDED);
    a_forced_release_shows_at_the_next_renewal(&url);
}

#[test]
fn h430_another_instance_upgrades_and_downgrades_a_hold_on_etcd() {
    another_instance_upgrades_and_downgrades(&etcd().url());
}

/// What one instance has closed for its period stays closed, whatever another one is asked afterwards.
fn a_late_release_elsewhere_opens_no_task(url: &str) {
    let team = Team::at(url);
    let (one, two) = (team.instance(), team.instance());
    let begin = |service: &Service| {
        service.ask("POST /v1/once/job", r#"{"every": "1h", "ttl_ms": 60000}"#).is(200).json()
    };
    let hold = begin(&one)["hold"]["hold"].as_str().unwrap().to_owned();
    two.renew(&hold).is(200);
    assert_eq!(ask(&two, "succeed", &hold).is(200).json()["closed"], true);
    // The first instance knows the hold, and nothing of its end.
    one.release(&hold).is(410).kind("Unconfirmed");
    team.instance().release(&hold).is(410);
    for service in [&one, &two] {
        assert_eq!(begin(service)["outcome"], "done");
    }
}

#[test]
fn h432_a_late_release_elsewhere_opens_no_task_on_etcd() {
    a_late_release_elsewhere_opens_no_task(&etcd().url());
}

#[test]
fn h432_a_late_release_elsewhere_opens_no_task_on_redlock() {
    let (_servers, url) = redlock(GUARDED);
    a_late_release_elsewhere_opens_no_task(&url);
}

#[test]
fn h432_a_late_release_elsewhere_opens_no_task_on_redis() {
    a_late_release_elsewhere_opens_no_task(&redis().url());
}

/// One of three servers loses its data, and another one goes away: two of three still know the hold.
#[test]
fn h433_a_node_that_lost_its_data_costs_no_hold_of_a_ticket() {
    let (mut servers, url) = redlock("guard=false");
    let team = Team::at(&url);
    let (one, two) = (team.instance(), team.instance());
    let held = one.lock("x", r#"{"ttl_ms": 8000}"#);
    let (hold, token) = (held.is(200).get("hold"), held.get("token"));
    two.renew(&hold).is(200);
    kill(one);
    servers[0].restart(Data::Empty).unwrap();
    // Those that have it go on; the other one gets it again, and counts from then on.
    eventually("the hold at the node that lost it", || {
        assert_eq!(two.renew(&hold).is(200).get("token"), token);
        servers[0].info("db0").ok()
    });
    servers[1].kill();
    assert_eq!(two.renew(&hold).is(200).get("token"), token);
    two.lock("x", "{}").is(409);
    two.release(&hold).is(200);
}

/// The lease has ended between two renewals, and another client has the lock: each instance says that the hold is lost.
fn an_expired_hold_is_lost_everywhere(url: &str) {
    let team = Team::at(url);
    let (one, two) = (team.instance(), team.instance());
    let hold = one.hold("x", r#"{"ttl_ms": 2000}"#);
    two.renew(&hold).is(200);
    let next = two.lock("x", r#"{"ttl_ms": 60000, "wait_ms": 20000}"#).is(200).get("hold");
    for service in [&two, &one, &team.instance()] {
        service.renew(&hold).is(410).kind("Lost");
        service.release(&hold).is(410);
        service.renew(&next).is(200);
    }
}

#[test]
fn h430_an_expired_hold_is_lost_everywhere_on_etcd() {
    an_expired_hold_is_lost_everywhere(&etcd().url());
}

#[test]
fn h431_an_expired_hold_is_lost_everywhere_on_redlock() {
    let (_servers, url) = redlock(GUARDED);
    an_expired_hold_is_lost_everywhere(&url);
}

/// Two instances renew and release the same hold at once, again and again: the lock is free afterwards, and no other
/// client's hold ends.
fn releases_and_renewals_at_once_harm_nobody(url: &str) {
    let team = Team::at(url);
    let (one, two) = (team.instance(), team.instance());
    let other = one.hold("other", r#"{"ttl_ms": 60000}"#);
    for round in 0..30 {
        let hold = one.hold("x", r#"{"ttl_ms": 60000}"#);
        let (release, renew) =
            (format!("DELETE /v1/holds/{hold}"), format!("POST /v1/holds/{hold}/renew"));
        let [a, b] = [&one.address, &two.address];
        let statuses: Vec<u16> = scope(|scope| {
            let all = [(a, &release), (b, &renew), (b, &release), (a, &renew)]
                .map(|(at, line)| scope.spawn(|| at.ask(line, &[], "").status));
            all.into_iter().map(|it| it.join().unwrap()).collect()
        });
        assert!(statuses.iter().all(|it| [200, 410].contains(it)), "{round}: {statuses:?}");
        assert!([statuses[0], statuses[2]].contains(&200), "{round}: {statuses:?}");
        for service in [&one, &two] {
            service.renew(&hold).is(410);
        }
        let next = two.lock("x", r#"{"ttl_ms": 60000, "wait_ms": 5000}"#).is(200).get("hold");
        one.release(&next).is(200);
    }
    two.renew(&other).is(200);
}

#[test]
fn h434_releases_and_renewals_at_once_harm_nobody_on_etcd() {
    releases_and_renewals_at_once_harm_nobody(&etcd().url());
}

#[test]
fn h434_releases_and_renewals_at_once_harm_nobody_on_redlock() {
    let (_servers, url) = redlock(GUARDED);
    releases_and_renewals_at_once_harm_nobody(&url);
}

#[test]
fn h430_a_grant_after_a_wait_has_the_whole_ttl_on_etcd() {
    a_grant_after_a_wait_has_the_whole_ttl(&etcd().url());
}

/// What a client does whose request did not get through a balancer: it repeats it, until its hold ends.
fn through(balancer: &proxies::Proxy, line: &str, limit: Duration) -> Answer {
    let start = Instant::now();
    loop {
        let answer = balancer.address.ask(line, &[], "");
        if ![502, 503, 504].contains(&answer.status) {
            return answer;
        }
        assert!(start.elapsed() < limit, "{line}: {answer:?}");
        sleep(Duration::from_millis(20));
    }
}

/// The instance that has granted a hold is killed, and so is the other one later: the balancer finds one that renews it.
fn a_hold_survives_its_instance_behind(balancer: fn([&Service; 2]) -> proxies::Proxy, url: &str) {
    const TTL: Duration = Duration::from_secs(4);
    let team = Team::at(url);
    let options = ["--allow-host", "locks"];
    let (one, two) = (team.with(&options), team.with(&options));
    let balancer = balancer([&one, &two]);
    let held = balancer.address.ask("POST /v1/locks/x", &[], r#"{"ttl_ms": 4000}"#);
    let (hold, token) = (held.is(200).get("hold"), held.get("token"));
    let renew = format!("POST /v1/holds/{hold}/renew");
    let granted = |service: &Service| {
        service.ask("GET /metrics", "").text.contains("latchwork_client_holds 1\n")
    };
    let services = if granted(&one) { [one, two] } else { [two, one] };
    let mut revived = Vec::new();
    let key = team.key_file().display().to_string();
    for mut service in services {
        service.process.child.kill().unwrap();
        let start = Instant::now();
        while start.elapsed() < TTL {
            let renewed = through(&balancer, &renew, TTL / 2);
            assert_eq!(renewed.is(200).get("token"), token);
            sleep(Duration::from_millis(100));
        }
        let busy = balancer.address.ask("POST /v1/locks/x", &[], "{}");
        assert!([409, 502, 503].contains(&busy.status), "{busy:?}");
        let again = service
            .revived(&[&["--store", &team.url, "--seal-key-file", &key], &options[..]].concat());
        again.renew(&hold).is(200);
        // A balancer that checks its servers takes it again after a while.
        eventually("requests at the instance that came back", || {
            through(&balancer, &renew, TTL / 2).is(200);
            let told = again.ask("GET /metrics", "").text;
            let renewals = |line: &&str| line.contains("renew") && line.contains("requests_total");
            told.lines().find(renewals).filter(|line| !line.ends_with(" 1")).map(drop)
        });
        revived.push(again);
    }
    through(&balancer, &format!("DELETE /v1/holds/{hold}"), TTL).is(200);
    let seen = through(&balancer, "GET /v1/locks/x", TTL);
    assert_eq!(seen.is(200).json()["holders"].as_array().map(Vec::len), Some(0));
}

#[test]
fn h435_a_hold_survives_its_instance_behind_nginx() {
    a_hold_survives_its_instance_behind(proxies::Proxy::nginx_of, &etcd().url());
    a_hold_survives_its_instance_behind(proxies::Proxy::nginx_of, &redis().url());
}

#[test]
fn h435_a_hold_survives_its_instance_behind_haproxy() {
    let (_servers, url) = redlock(GUARDED);
    a_hold_survives_its_instance_behind(proxies::Proxy::haproxy_of, &url);
    a_hold_survives_its_instance_behind(proxies::Proxy::haproxy_of, &etcd().url());
}

/// One instance cannot reach the store. It says neither that the hold lasts nor that it is lost, while the other one
/// renews it; and it renews when the store is back.
fn an_instance_without_its_store_tells_no_untruth(port: u16, url: &str) {
    let way = Proxy::plain(port).unwrap();
    let (team, cut) =
        (Team::at(url), Team::at(&url.replace(&port.to_string(), &way.port().to_string())));
    let (one, two) = (team.instance(), cut.instance());
    let hold = two.hold("x", r#"{"ttl_ms": 3000}"#);
    for direction in [Direction::ToServer, Direction::ToClient] {
        way.freeze(direction);
    }
    let (start, mut asked) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(8) {
        one.renew(&hold).is(200);
        let lines = [format!("POST /v1/holds/{hold}/renew"), format!("GET /v1/holds/{hold}")];
        let address = &two.address;
        let told = scope(|scope| {
            let told = scope.spawn(|| lines.map(|line| address.ask(&line, &[], "")));
            while !told.is_finished() {
                one.renew(&hold).is(200);
                sleep(Duration::from_millis(100));
            }
            told.join().unwrap()
        });
        for answer in told {
            answer.is(503).kind("Unreachable");
            asked += 1;
        }
    }
    assert!(asked >= 2);
    for direction in [Direction::ToServer, Direction::ToClient] {
        way.thaw(direction);
    }
    eventually("a renewal after the break", || {
        one.renew(&hold).is(200);
        let answer = two.renew(&hold);
        assert!([200, 503].contains(&answer.status), "{answer:?}");
        (answer.status == 200).then_some(())
    });
    two.release(&hold).is(200);
    one.renew(&hold).is(410);
}

#[test]
fn h437_an_instance_without_its_store_tells_no_untruth_on_etcd() {
    let server = etcd();
    an_instance_without_its_store_tells_no_untruth(server.port(), &server.url());
}

#[test]
fn h437_an_instance_without_its_store_tells_no_untruth_on_redis() {
    let server = redis();
    an_instance_without_its_store_tells_no_untruth(server.port(), &server.url());
}

/// The first instance gives the lease of a released hold to the next one; the second remembers the old hold with it.
#[test]
fn h474_a_late_renewal_lengthens_no_other_lock() {
    let server = etcd();
    let team = Team::at(&server.url());
    let (one, two) = (team.instance(), team.instance());
    let body = r#"{"ttl_ms": 5000}"#;
    for granted_by_two in [false, true] {
        let (first, second) = if granted_by_two { (&two, &one) } else { (&one, &two) };
        let old = first.hold("p", body);
        second.renew(&old).is(200);
        one.release(&old).is(200);
        let next = one.hold("q", body);
        let left = || {
            let lock = one.ask("GET /v1/locks/q", "").is(200).json();
            lock["holders"][0]["remaining_ms"].as_u64().unwrap()
        };
        sleep(Duration::from_secs(2));
        let before = left();
        two.renew(&old).is(410);
        assert!(left() <= before, "{} after {before}", left());
        one.release(&next).is(200);
    }
}

/// Ends the clients, also where the test fails.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The key is replaced as documented, twice, while clients acquire, renew and release at both instances.
#[test]
fn h438_keys_are_replaced_under_load() {
    const THREE: &str = "ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100";
    let server = etcd();
    let team = Team::at(&server.url());
    let services = [team.instance(), team.instance()];
    let reload = |text: &str| {
        team.write_key(text);
        for service in &services {
            service.process.signal(Signal::HUP);
            service.process.stderr.until("the seal keys were read again");
        }
    };
    let is_done = AtomicBool::new(false);
    let rounds = [(); 3].map(|()| AtomicU32::new(0));
    scope(|scope| {
        let done = Done(&is_done);
        let clients: Vec<_> = (0..3)
            .map(|number: usize| {
                let (is_done, rounds) = (&is_done, &rounds[number]);
                let [a, b] = [0, 1].map(|it| &services[(number + it) % 2].address);
                scope.spawn(move || {
                    while !is_done.load(Ordering::SeqCst) {
                        let line = format!("POST /v1/locks/k{number}");
                        let hold = a.ask(&line, &[], r#"{"ttl_ms": 5000}"#).is(200).get("hold");
                        for address in [b, a, b] {
                            address.ask(&format!("POST /v1/holds/{hold}/renew"), &[], "").is(200);
                        }
                        b.ask(&format!("DELETE /v1/holds/{hold}"), &[], "").is(200);
                        rounds.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        let some_rounds = || {
            for rounds in &rounds {
                let before = rounds.load(Ordering::SeqCst);
                let went_on = || rounds.load(Ordering::SeqCst) >= before + 3;
                eventually("rounds", || went_on().then_some(()));
            }
        };
        for (old, new) in [(ONE, TWO), (TWO, THREE)] {
            for text in [format!("{old}\n{new}\n"), format!("{new}\n{old}\n"), new.to_owned()] {
                some_rounds();
                reload(&text);
            }
        }
        some_rounds();
        drop(done);
        clients.into_iter().for_each(|client| client.join().unwrap());
    });
}
