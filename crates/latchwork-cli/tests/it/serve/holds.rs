//! The life of a hold: granted, renewed, released, lost; and how long its client may rely on it.

use std::thread::sleep;
use std::time::{Duration, Instant};

use latchwork_services::ServerClock;
use latchwork_store::testing::stalls;
use serde_json::json;

use super::Service;
use super::client::AT_ONCE;
use crate::common::{SOON, eventually};

#[test]
fn a_lock_over_http_excludes_others() {
    let service = Service::start(&[]);
    let first = service.lock("stock%2F42", r#"{"holder": "first"}"#);
    let token: u64 = first.is(200).get("token").parse().unwrap();
    assert_eq!(first.json()["locks"][0]["name"], "stock/42");
    let refused = service.lock("stock%2F42", "{}");
    refused.is(409).kind("TimedOut");
    assert_eq!(refused.get("key"), "stock/42");
    assert_eq!(refused.json()["lock"]["holders"][0]["holder"], "first");
    // The command sees the same lock.
    assert_eq!(service.store.output(&["status", "stock/42"]).code(), 0);
    service.release(&first.get("hold")).is(200);
    let second = service.lock("stock%2F42", "{}");
    assert!(second.is(200).get("token").parse::<u64>().unwrap() > token);
}

#[test]
fn a_renewal_gives_the_whole_ttl() {
    let service = Service::start(&[]);
    let hold = service.hold("x", r#"{"ttl_ms": 2000}"#);
    // Longer than the ttl, which is that of the lease at the store.
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(5) {
        sleep(Duration::from_millis(300));
        let renewed = service.renew(&hold);
        // Less the drift of the clocks.
        assert_eq!(renewed.is(200).number("valid_for_ms"), 1978);
    }
    service.release(&hold).is(200);
}

#[test]
fn a_hold_that_is_not_renewed_is_released() {
    let service = Service::start(&[]);
    let start = Instant::now();
    let hold = service.hold("x", r#"{"ttl_ms": 1000, "holder": "first"}"#);
    let second = service.lock("x", r#"{"wait_ms": 15000, "holder": "second"}"#);
    second.is(200);
    assert!(start.elapsed() >= Duration::from_secs(1), "released while its client relied on it");
    let late = service.renew(&hold);
    late.is(410).kind("Lost");
    late.step("stop the work, and check what was written under its token; renew earlier");
    assert_eq!(late.get("reason"), "not_renewed");
    service.release(&hold).is(410).kind("Lost");
}

#[test]
fn validity_counts_from_the_arrival() {
    let service = Service::start(&[]);
    let first = service.hold("x", "{}");
    let waiting = service.wait_for("x", &[], r#"{"ttl_ms": 3000, "wait_ms": 20000}"#);
    sleep(Duration::from_secs(1));
    service.release(&first).is(200);
    let since = waiting.since;
    let answer = waiting.answer();
    // The wait is part of it, for a client that counts from before it sent the request.
    let valid = Duration::from_millis(answer.is(200).number("valid_for_ms"));
    assert!(valid >= Duration::from_millis(3900), "{answer:?}");
    assert!(valid <= Duration::from_secs(3) + since.elapsed() + SOON, "{answer:?}");
    let shown = service.ask(&format!("GET /v1/holds/{}", answer.get("hold")), "");
    assert!(shown.is(200).number("valid_for_ms") <= 3100, "{shown:?}");
}

#[test]
fn a_release_may_be_repeated_and_a_loss_is_told() {
    let service = Service::start(&[]);
    let hold = service.hold("x", "{}");
    service.release(&hold).is(200);
    service.release(&hold).is(200);
    service.renew(&hold).is(410).kind("Released");
    service.release("00000000000000000000000000000000").is(404).kind("NotFound");
    service.release("x").is(404).kind("NotFound");
    let hold = service.hold("x", "{}");
    assert_eq!(service.store.output(&["release", "--force", "x"]).code(), 0);
    // The renewal is one of the store.
    let lost = service.renew(&hold);
    lost.is(410).kind("Lost").step("stop the work, and check what was written under its token");
    assert_eq!(lost.get("reason"), "taken");
}

#[test]
fn a_ttl_outside_of_the_range_is_refused() {
    let service = Service::start(&[]);
    for ttl in ["0", "99", "86400001"] {
        let refused = service.lock("x", &format!(r#"{{"ttl_ms": {ttl}}}"#));
        refused.is(400).kind("Invalid");
        refused.step("choose a ttl_ms within the range, or leave it out");
        assert!(refused.get("error").contains("100 to 86400000"), "{refused:?}");
    }
    // The description has numbers of 64 bits with a sign.
    for limit in ["0", "1", "99", "9223372036854775808"] {
        let refused = service.lock("x", &format!(r#"{{"max_hold_ms": {limit}}}"#));
        refused.is(400).kind("Invalid").step("leave it out for no limit");
        assert!(
            refused.get("error").contains("max_hold_ms: it must be from 100 to"),
            "{refused:?}"
        );
    }
    let shortest = r#"{"max_hold_ms": 100}"#;
    eventually("a hold that can be used", || {
        service.lock("short", shortest).json()["valid_for_ms"].as_u64().filter(|left| *left > 0)
    });
    // The store has half of the ttl to answer, which a busy machine may exceed.
    eventually("a hold", || (service.lock("x", r#"{"ttl_ms": 100}"#).status == 200).then_some(()));
}

#[test]
fn a_cut_request_that_waits_leaves_nothing() {
    let service = Service::start(&[]);
    let hold = service.hold("x", "{}");
    let waiting = service.wait_for("x", &[], r#"{"wait_ms": 60000}"#);
    assert_eq!(service.waiters("x"), 1);
    drop(waiting);
    let start = Instant::now();
    eventually("no waiter", || (service.waiters("x") == 0).then_some(()));
    stalls::in_time(start, AT_ONCE);
    service.release(&hold).is(200);
    assert!(!service.is_held("x"));
}

#[test]
fn h156_a_lock_outlives_the_service_that_is_killed() {
    let service = Service::start(&[]);
    let start = Instant::now();
    let answer = service.lock("x", r#"{"ttl_ms": 4000}"#);
    let valid = Duration::from_millis(answer.is(200).number("valid_for_ms"));
    let service = service.restart(&[]);
    // Its client relies on it yet, though the process that took it has died.
    service.lock("x", "{}").is(409);
    service.renew(&answer.get("hold")).is(404);
    let next = service.lock("x", r#"{"ttl_ms": 4000, "wait_ms": 30000}"#);
    next.is(200);
    assert!(start.elapsed() >= valid, "{:?} of {valid:?}", start.elapsed());
}

/// Somebody sets the service's wall clock by an hour, there and back. Holds that are renewed stay, after a moment of doubt,
/// and what a client was promised is kept to the end.
#[test]
fn a_set_wall_clock_ends_no_hold_and_shortens_none() {
    let hour = Duration::from_secs(3_600);
    let clock = ServerClock::of_clients().unwrap();
    let service = Service::with_clock(&clock);
    let renewed = service.hold("renewed", r#"{"ttl_ms": 4000}"#);
    for set in [ServerClock::step_back, ServerClock::step_forward, ServerClock::step_forward] {
        set(&clock, hour).unwrap();
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(2) {
            sleep(Duration::from_millis(400));
            // A step forward may be a pause of the machine: the store is asked, and the client asks again.
            let answer = eventually("a renewal", || {
                Some(service.renew(&renewed)).filter(|it| it.status != 503)
            });
            assert_eq!(answer.is(200).number("valid_for_ms"), 3958);
        }
    }
    service.release(&renewed).is(200);

    let start = Instant::now();
    let promised = service.lock("promised", r#"{"ttl_ms": 3000}"#);
    let valid = Duration::from_millis(promised.is(200).number("valid_for_ms"));
    clock.step_back(hour).unwrap();
    clock.step_forward(2 * hour).unwrap();
    service.lock("promised", r#"{"wait_ms": 20000}"#).is(200);
    assert!(start.elapsed() >= valid, "{:?} of {valid:?}", start.elapsed());
    assert!(start.elapsed() <= valid + SOON, "{:?} of {valid:?}", start.elapsed());
}

/// nginx as installed takes a line of 8 KiB.
#[test]
fn no_id_is_too_long_for_a_path() {
    let service = Service::start(&[]);
    for (count, name, text) in
        [(64, 83, 0), (64, 60, 0), (41, 83, 0), (38, 83, 0), (26, 60, 1_024), (1, 83, 1_024)]
    {
        let locks: Vec<_> = (0..count)
            .map(|at| json!({ "name": format!("{at:02}{}", "n".repeat(name - 2)) }))
            .collect();
        let text = "t".repeat(text.max(1));
        let body = json!({ "locks": locks, "ttl_ms": 60_000, "holder": text, "value": &text[2.min(text.len())..] });
        let hold = service.ask("POST /v1/holds", &body.to_string()).is(200).get("hold");
        assert!(hold.len() < 7_500, "{count} locks of {name} characters: {}", hold.len());
        service.renew(&hold).is(200);
        service.release(&hold).is(200);
    }
}
