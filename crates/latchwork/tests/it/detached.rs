//! A hold that outlives the process that acquired it.
//!
//! The test starts this program again; the test named `child` plays the first process.

#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "tests")]

use std::time::Duration;

use latchwork::{BlockOn, ErrorKind, Handover, HoldState, LockManager};
use latchwork_services::child::{Process, role, say};
use latchwork_services::{PostgresServer, RedisOptions, RedisServer};

const TTL: Duration = Duration::from_secs(3);

/// Acquires, hands over once within the process, and leaves the hold to another.
#[test]
fn child() {
    let Some((_, url)) = role() else { return };
    let handover = Handover::new(TTL / 2, Handover::default().times);
    let locks = latchwork::connect(&url).block_on().unwrap().ttl(TTL).handover(handover);
    let first = locks.mutex("k").acquire().block_on().unwrap();
    let waiter = {
        let locks = locks.clone();
        std::thread::spawn(move || locks.mutex("k").acquire().block_on().unwrap())
    };
    std::thread::sleep(Duration::from_millis(100));
    first.release().block_on().unwrap();
    let guard = waiter.join().unwrap();
    assert!(guard.token().handovers() > 0, "it was handed over within the process");
    say(guard.token());
    say(guard.detach().block_on().unwrap());
}

/// A token and a ticket of a process that has ended.
fn detached(url: &str) -> (String, String) {
    let mut first = Process::start("detached::hold", url);
    let told = (first.line(), first.line());
    first.end();
    told
}

fn passes(locks: &LockManager, url: &str) {
    let (token, ticket) = detached(url);
    assert!(locks.mutex("k").try_acquire().block_on().unwrap().is_none(), "nobody gets in between");
    let guard = locks.adopt(&ticket).block_on().unwrap();
    assert_eq!(guard.token().to_string(), token);
    std::thread::sleep(TTL + TTL / 2);
    assert_eq!(guard.state(), HoldState::Held);
    assert!(locks.mutex("k").try_acquire().block_on().unwrap().is_none());
    guard.release().block_on().unwrap();
    let next = locks.mutex("k").try_acquire().block_on().unwrap().expect("free at once");
    assert!(next.token().to_string() > token);
    next.release().block_on().unwrap();
    let error = locks.adopt(&ticket).block_on().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

/// On files a dead process frees its locks at once, but not what it has detached.
#[test]
fn a_detached_hold_outlives_its_process_on_files() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}", dir.path().join("locks").display());
    passes(&latchwork::connect(&url).block_on().unwrap(), &url);
}

#[test]
fn a_detached_hold_outlives_its_process_on_redis() {
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    let url = server.url();
    passes(&latchwork::connect(&url).block_on().unwrap(), &url);
}

#[test]
fn an_upgraded_hold_is_detached_as_a_writer() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}", dir.path().join("locks").display());
    let (one, other) = (
        latchwork::connect(&url).block_on().unwrap(),
        latchwork::connect(&url).block_on().unwrap(),
    );
    let page = one.rwlock("k");
    let mut guard = page.read().acquire().block_on().unwrap();
    let token = guard.upgrade().block_on().unwrap();
    let ticket = guard.detach().block_on().unwrap();
    let mut guard = other.adopt(&ticket).block_on().unwrap();
    assert_eq!(guard.token(), token);
    assert!(page.read().try_acquire().block_on().unwrap().is_none());
    assert!(guard.downgrade().block_on().unwrap() > token);
    let ticket = guard.detach().block_on().unwrap();
    let mut guard = one.adopt(&ticket).block_on().unwrap();
    guard.upgrade().block_on().unwrap();
    assert!(page.read().try_acquire().block_on().unwrap().is_none());
    guard.release().block_on().unwrap();
    assert!(page.read().try_acquire().block_on().unwrap().is_some());
}

/// The process that adopts it may die: then the lock is free at once, as if it had acquired it.
#[test]
fn an_adopted_hold_belongs_to_the_adopting_process() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}", dir.path().join("locks").display());
    let (_, ticket) = detached(&url);
    let locks = latchwork::connect(&url).block_on().unwrap();
    let adopter = latchwork::connect(&url).block_on().unwrap();
    let guard = adopter.adopt(&ticket).block_on().unwrap();
    let shown = locks.inspect("k").block_on().unwrap();
    assert_eq!(shown.holders[0].holder.lock_delay, None, "it has no delay of its own");
    drop(guard);
    let next = locks.mutex("k").acquire_within(TTL / 2).block_on().unwrap();
    next.release().block_on().unwrap();
}

/// A ticket whose fields were changed, on the way of a message, gives no guard, and leaves the lock to the right one.
fn refuses_what_was_changed(url: &str) {
    let locks = latchwork::connect(url).block_on().unwrap().ttl(30 * TTL);
    let ticket = locks.mutex("k").acquire().block_on().unwrap().detach().block_on().unwrap();
    let fields: Vec<&str> = ticket.split('.').collect();
    let with = |at: usize, value: &str| {
        let mut fields = fields.clone();
        fields[at] = value;
        fields.join(".")
    };
    for (changed, field) in [
        (with(4, "99999999999999"), "ttl"),
        (with(4, "1"), "ttl"),
        (with(2, "r"), "mode"),
        (with(2, "w"), "mode"),
        (with(2, "p1-2"), "mode"),
        (with(6, "6d65"), "holder"),
        (with(3, "7"), "token"),
    ] {
        let error = locks.adopt(&changed).block_on().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{field}: {error}");
        assert!(error.to_string().contains(&format!("ticket's {field}")), "{field}: {error}");
    }
    for text in ["", "no ticket", &ticket[1..]] {
        let error = locks.adopt(text).block_on().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.next_step().unwrap().starts_with("pass on what Guard::detach returned"));
    }
    let guard = locks.adopt(&ticket).block_on().unwrap();
    assert!(guard.remaining() <= 30 * TTL);
    guard.release().block_on().unwrap();
}

#[test]
fn h241_a_changed_ticket_gives_no_guard() {
    let dir = tempfile::tempdir().unwrap();
    refuses_what_was_changed(&format!("file://{}", dir.path().join("locks").display()));
    refuses_what_was_changed("mem:changed-tickets");
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    refuses_what_was_changed(&server.url());
}

/// A queue delivers the first ticket again after the hold was passed on once more: it gives no guard, and harms nobody.
#[test]
fn h241_an_old_ticket_gives_no_second_guard() {
    let dir = tempfile::tempdir().unwrap();
    let files = format!("file://{}", dir.path().join("locks").display());
    let postgres = PostgresServer::start().unwrap();
    latchwork::init(&postgres.url()).block_on().unwrap();
    for url in [&*files, "mem:old-tickets", &postgres.url()] {
        let locks = latchwork::connect(url).block_on().unwrap().ttl(10 * TTL);
        let first = locks.mutex("k").acquire().block_on().unwrap().detach().block_on().unwrap();
        let second = locks.adopt(&first).block_on().unwrap().detach().block_on().unwrap();
        for _ in 0..2 {
            let error = locks.adopt(&first).block_on().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
            assert!(error.to_string().contains("detached again"), "{error}");
        }
        let guard = locks.adopt(&second).block_on().unwrap();
        assert_eq!(locks.adopt(&first).block_on().unwrap_err().kind(), ErrorKind::Lost);
        assert!(locks.mutex("k").try_acquire().block_on().unwrap().is_none());
        guard.release().block_on().unwrap();
    }
}

/// Redis does not keep their number: both guards have the same token, and the release of one ends the other.
#[test]
fn h241_an_old_ticket_gives_a_second_guard_of_one_token_on_redis() {
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    let locks = latchwork::connect(&server.url()).block_on().unwrap().ttl(TTL);
    let old = locks.mutex("k").acquire().block_on().unwrap().detach().block_on().unwrap();
    let new = locks.adopt(&old).block_on().unwrap().detach().block_on().unwrap();
    let [old, new] = [old, new].map(|ticket| locks.adopt(&ticket).block_on().unwrap());
    assert_eq!(old.token(), new.token());
    assert!(locks.mutex("k").try_acquire().block_on().unwrap().is_none());
    new.release().block_on().unwrap();
    old.lost().block_on();
}

/// A guard whose detach failed releases.
#[test]
fn a_reentrant_guard_is_not_detached() {
    let locks = latchwork::connect("mem:").block_on().unwrap();
    let mutex = locks.reentrant("k");
    let owner = latchwork::Owner::named("me");
    let guard = mutex.acquire(&owner).block_on().unwrap();
    let error = guard.detach().block_on().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let next = locks.mutex("k").acquire_within(TTL).block_on().unwrap();
    next.release().block_on().unwrap();
}
