//! Threads that wait: each call at its end with `block_on`.

#![allow(clippy::disallowed_methods, reason = "tests start threads of their own")]

use std::thread;
use std::time::Duration;

use futures_util::StreamExt;
use latchwork::once::Begun;
use latchwork::once::{OnceOutcome, Skipped};
use latchwork::{BlockOn, LockManager, MultiLock};
use latchwork::{ErrorKind, HoldState, Owner, Period};

fn locks() -> LockManager {
    latchwork::connect("mem:").block_on().unwrap().namespace("blocking")
}

const SOON: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(60);

#[test]
fn readers_and_writers() {
    let locks = locks();
    let page = locks.rwlock("page");
    let (one, two) =
        (page.read().acquire().block_on().unwrap(), page.read().acquire().block_on().unwrap());
    assert!(page.write().try_acquire().block_on().unwrap().is_none());
    let error = page.write().acquire_within(SOON).block_on().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    one.release().block_on().unwrap();
    two.release().block_on().unwrap();
    let writer = page.write().acquire_within(LONG).block_on().unwrap();
    assert!(page.read().try_acquire().block_on().unwrap().is_none());
    writer.release().block_on().unwrap();
}

#[test]
fn permits() {
    let locks = locks();
    let exports = locks.semaphore("exports", 3);
    let two = exports.permits(2).acquire().block_on().unwrap();
    let one = exports.permit().acquire().block_on().unwrap();
    assert!(exports.permit().try_acquire().block_on().unwrap().is_none());
    drop(two);
    exports.permits(2).acquire_within(LONG).block_on().unwrap().release().block_on().unwrap();
    one.release().block_on().unwrap();
}

#[test]
fn a_thread_reenters_and_others_wait() {
    let locks = locks();
    let account = locks.reentrant("account");
    let me = Owner::current_thread();
    let outer = account.acquire(&me).block_on().unwrap();
    let inner = account.acquire_within(&me, SOON).block_on().unwrap();
    assert!(account.try_acquire(&Owner::named("somebody else")).block_on().unwrap().is_none());
    let other = account.clone();
    let theirs = thread::spawn(move || {
        let they = Owner::current_thread();
        assert!(other.try_acquire(&they).block_on().unwrap().is_none());
        other.acquire_within(&they, LONG).block_on().unwrap().token()
    });
    thread::sleep(SOON);
    let token = inner.token();
    drop(outer);
    inner.release().block_on().unwrap();
    assert!(theirs.join().unwrap() > token);
}

#[test]
fn several_at_once() {
    let locks = locks();
    let both = MultiLock::of([locks.mutex("a"), locks.mutex("b")]).acquire().block_on().unwrap();
    both.ensure_held().unwrap();
    assert_eq!(both.tokens().map(|(key, _)| key).collect::<Vec<_>>(), ["blocking:a", "blocking:b"]);
    assert_eq!(both.state(), HoldState::Held);
    assert!(both.remaining() > SOON);
    assert!(locks.multi(["b", "c"]).try_acquire().block_on().unwrap().is_none());
    both.release().block_on().unwrap();
    locks.multi(["b", "c"]).acquire_within(LONG).block_on().unwrap().release().block_on().unwrap();
}

#[test]
fn the_blocking_observer_yields_the_leader() {
    let locks = locks();
    let election = locks.election("leader").candidate("us").look_every(Duration::from_millis(10));
    let mut changes = std::pin::pin!(election.observe());
    assert_eq!(changes.next().block_on().unwrap().unwrap(), None);
    let leadership = election.campaign().block_on().unwrap();
    let leader = changes.next().block_on().unwrap().unwrap().unwrap();
    assert_eq!((&*leader.candidate, leader.term), ("us", leadership.term()));
    leadership.ensure_held().unwrap();
    assert!(election.try_campaign().block_on().unwrap().is_none());
    assert_eq!(election.campaign_within(SOON).block_on().unwrap_err().kind(), ErrorKind::TimedOut);
    leadership.resign().block_on().unwrap();
    assert_eq!(changes.next().block_on().unwrap().unwrap(), None);
}

#[test]
fn once_in_a_period() {
    let locks = locks();
    let report = locks.once("report", Period::parse("100y", None).unwrap());
    let failed = report.run(async |_| Err::<(), _>("no paper")).block_on().unwrap();
    assert!(matches!(failed, OnceOutcome::Failed("no paper")));
    let Begun::Run(run) = report.try_begin().block_on().unwrap() else {
        panic!("it failed before")
    };
    run.ensure_held().unwrap();
    run.fail().block_on().unwrap();
    let done = report.run(async |run| run.ensure_held().map(|_| 7)).block_on().unwrap();
    assert!(matches!(done, OnceOutcome::Done(7)), "{done:?}");
    let again = report.begin_within(SOON).block_on().unwrap();
    assert!(matches!(again, Begun::Skipped(Skipped::Done { .. })), "{again:?}");
}

/// Every `mem:` is a store of its own; a name is shared for as long as somebody uses it.
#[test]
fn a_named_store_in_memory_is_shared_in_the_process() {
    use latchwork::BlockOn;
    let connect = |address: &str| latchwork::connect(address).block_on().unwrap();
    let (one, two) = (connect("mem:shared"), connect("mem:shared"));
    let held = one.mutex("k").acquire().block_on().unwrap();
    assert!(two.mutex("k").try_acquire().block_on().unwrap().is_none());
    assert!(connect("mem:other").mutex("k").try_acquire().block_on().unwrap().is_some());
    assert!(connect("mem:").mutex("k").try_acquire().block_on().unwrap().is_some());
    assert_eq!(&*two.capabilities().store, "mem:shared");
    held.release().block_on().unwrap();
    let next = two.mutex("k").acquire().block_on().unwrap();
    next.release().block_on().unwrap();
    drop((one, two));
    let fresh = connect("mem:shared");
    assert!(fresh.list("").block_on().unwrap().is_empty());
}
