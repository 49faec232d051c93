//! The mirror for threads that wait: each call does what its model does.

#![allow(clippy::disallowed_methods, reason = "tests start threads of their own")]

use std::thread;
use std::time::Duration;

use latchwork::blocking::{Begun, LockManager, MultiLock, connect};
use latchwork::{ErrorKind, HoldState, OnceOutcome, Owner, Period, Skipped};

fn locks() -> LockManager {
    connect("mem:").unwrap().namespace("blocking")
}

const SOON: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(60);

#[test]
fn readers_and_writers() {
    let locks = locks();
    let page = locks.rwlock("page");
    let (one, two) = (page.read().acquire().unwrap(), page.read().acquire().unwrap());
    assert!(page.write().try_acquire().unwrap().is_none());
    let error = page.write().acquire_within(SOON).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    one.release().unwrap();
    two.release().unwrap();
    let writer = page.write().acquire_within(LONG).unwrap();
    assert!(page.read().try_acquire().unwrap().is_none());
    writer.release().unwrap();
}

#[test]
fn permits() {
    let locks = locks();
    let exports = locks.semaphore("exports", 3);
    let two = exports.permits(2).acquire().unwrap();
    let one = exports.permit().acquire().unwrap();
    assert!(exports.permit().try_acquire().unwrap().is_none());
    drop(two);
    exports.permits(2).acquire_within(LONG).unwrap().release().unwrap();
    one.release().unwrap();
}

#[test]
fn a_thread_enters_again_and_another_one_does_not() {
    let locks = locks();
    let account = locks.reentrant("account");
    let outer = account.acquire().unwrap();
    let inner = account.acquire_within(SOON).unwrap();
    assert!(account.try_acquire_as(&Owner::named("somebody else")).unwrap().is_none());
    let other = account.clone();
    let theirs = thread::spawn(move || {
        assert!(other.try_acquire().unwrap().is_none());
        other.acquire_within(LONG).unwrap().token()
    });
    thread::sleep(SOON);
    let token = inner.token();
    drop(outer);
    inner.release().unwrap();
    assert!(theirs.join().unwrap() > token);
}

#[test]
fn several_at_once() {
    let locks = locks();
    let both = MultiLock::of([locks.mutex("a"), locks.mutex("b")]).acquire().unwrap();
    both.ensure_held().unwrap();
    assert_eq!(both.tokens().map(|(key, _)| key).collect::<Vec<_>>(), ["blocking:a", "blocking:b"]);
    assert_eq!(both.state(), HoldState::Held);
    assert!(both.remaining() > SOON);
    assert!(locks.multi(["b", "c"]).try_acquire().unwrap().is_none());
    both.release().unwrap();
    locks.multi(["b", "c"]).acquire_within(LONG).unwrap().release().unwrap();
}

#[test]
fn one_leads_and_an_iterator_tells() {
    let locks = locks();
    let election = locks.election("leader").candidate("us").look_every(Duration::from_millis(10));
    let mut changes = election.observe();
    assert_eq!(changes.next().unwrap().unwrap(), None);
    let leadership = election.campaign().unwrap();
    let leader = changes.next().unwrap().unwrap().unwrap();
    assert_eq!((&*leader.candidate, leader.term), ("us", leadership.term()));
    leadership.ensure_held().unwrap();
    assert!(election.try_campaign().unwrap().is_none());
    assert_eq!(election.campaign_within(SOON).unwrap_err().kind(), ErrorKind::TimedOut);
    leadership.resign().unwrap();
    assert_eq!(changes.next().unwrap().unwrap(), None);
}

#[test]
fn once_in_a_period() {
    let locks = locks();
    let report = locks.once("report", Period::parse("100y", None).unwrap());
    let failed = report.run(|_| Err::<(), _>("no paper")).unwrap();
    assert!(matches!(failed, OnceOutcome::Failed("no paper")));
    let Begun::Run(run) = report.try_begin().unwrap() else { panic!("it failed before") };
    run.ensure_held().unwrap();
    run.fail().unwrap();
    let done = report.run(|run| run.ensure_held().map(|_| 7)).unwrap();
    assert!(matches!(done, OnceOutcome::Done(7)), "{done:?}");
    let again = report.begin_within(SOON).unwrap();
    assert!(matches!(again, Begun::Skipped(Skipped::Done { .. })), "{again:?}");
}
