//! Calls are answered as the test says, and those after them are not.

use futures_util::FutureExt;
use latchwork::testing::{Answer, Call, TestStore};
use latchwork::{BlockOn, ErrorKind, HoldState, MultiLock};

use super::{SEC, TTL};

#[tokio::test]
async fn a_scripted_failure_does_not_leak_into_the_next_call() {
    let store = TestStore::new();
    let lock = store.locks().mutex("k");
    for (answer, kind, may_have_applied) in [
        (Answer::Unreachable, ErrorKind::Unreachable, false),
        (Answer::AnswerLost, ErrorKind::Unreachable, true),
        (Answer::Denied, ErrorKind::Denied, false),
        (Answer::Corrupt, ErrorKind::Corrupt, false),
    ] {
        store.script(Call::Acquire, 2, answer);
        for _ in 0..2 {
            let error = lock.try_acquire().await.unwrap_err();
            assert_eq!((error.kind(), error.may_have_applied()), (kind, may_have_applied));
            store.settle().await;
        }
        let guard = lock.try_acquire().await.unwrap().expect("free");
        guard.release().await.unwrap();
    }
}

#[test]
fn a_lock_that_seems_held_is_waited_for() {
    let store = TestStore::new();
    let lock = store.locks().mutex("k");
    store.script(Call::Acquire, 2, Answer::Held);
    assert!(lock.try_acquire().block_on().unwrap().is_none());
    let waited = store.run_within(TTL, lock.acquire()).block_on();
    assert!(waited.unwrap().is_ok());
    assert_eq!(store.elapsed(), SEC);
}

#[tokio::test]
async fn a_store_in_quarantine_is_named_by_the_error() {
    let store = TestStore::new();
    let lock = store.locks().mutex("k");
    store.script(Call::Acquire, u32::MAX, Answer::Quarantined);
    assert!(lock.try_acquire().await.unwrap().is_none());
    let wait = lock.acquire_within(5 * SEC);
    let error = store.run_within(TTL, wait).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("quarantine"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pending_answer_waits_for_resume() {
    let store = TestStore::new();
    let lock = store.locks().mutex("k");
    store.script(Call::Acquire, 1, Answer::Pending);
    let mut waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
    store.until_called(Call::Acquire, 1).await;
    store.settle().await;
    assert!((&mut waiting).now_or_never().is_none());
    store.resume();
    assert_eq!(waiting.await.unwrap().state(), HoldState::Held);
}

/// Dropped on its way, an acquire has left nothing at the store.
#[tokio::test]
async fn a_pending_acquire_that_is_dropped_holds_nothing() {
    let store = TestStore::new();
    let lock = store.locks().mutex("k");
    store.script(Call::Acquire, 1, Answer::Pending);
    assert!(lock.acquire().now_or_never().is_none());
    store.resume();
    store.settle().await;
    assert!(store.locks().list("").await.unwrap().is_empty());
    assert!(store.locks().mutex("k").try_acquire().await.unwrap().is_some());
}

/// A renewal that fails is repeated, and a release too: nothing is lost, and nothing stays.
#[tokio::test]
async fn failed_renewals_and_releases_are_repeated() {
    let store = TestStore::new();
    let guard = store.locks().mutex("k").acquire().await.unwrap();
    store.script(Call::Renew, 3, Answer::Unreachable);
    store.advance(60 * SEC).await;
    assert_eq!(guard.state(), HoldState::Held);
    store.script(Call::Release, 3, Answer::Unreachable);
    drop(guard);
    store.settle().await;
    assert_eq!(store.count(Call::Release), 1);
    store.advance(TTL).await;
    assert_eq!(store.count(Call::Release), 4);
    assert!(store.locks().mutex("k").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn an_unreachable_store_loses_holds_after_their_ttl() {
    let store = TestStore::new();
    let (locks, other) = (store.locks(), store.locks());
    let guard = locks.mutex("k").acquire().await.unwrap();
    store.set_reachable(false);
    assert_eq!(locks.inspect("k").await.unwrap_err().kind(), ErrorKind::Unreachable);
    store.advance(TTL / 2).await;
    assert_eq!(guard.state(), HoldState::Held);
    store.set_reachable(true);
    store.advance(TTL).await;
    assert_eq!(guard.state(), HoldState::Held, "it came back in time");
    store.set_reachable(false);
    store.advance(TTL).await;
    assert!(matches!(guard.state(), HoldState::Lost(_)));
    assert_eq!(other.mutex("k").try_acquire().await.unwrap_err().kind(), ErrorKind::Unreachable);
    store.set_reachable(true);
    assert!(other.mutex("k").try_acquire().await.unwrap().is_some());
}

/// A script of one key leaves the others alone, and comes before that of all.
#[tokio::test]
async fn a_key_has_a_script_of_its_own() {
    let store = TestStore::new();
    let locks = store.locks().namespace("shop");
    store.script_of("shop:b", Call::Acquire, 1, Answer::Denied);
    let both = MultiLock::of([locks.mutex("a"), locks.mutex("b")]);
    assert_eq!(both.try_acquire().await.unwrap_err().kind(), ErrorKind::Denied);
    store.settle().await;
    let guards = both.try_acquire().await.unwrap().expect("the first was given back");
    drop(guards);
    store.settle().await;
    store.script(Call::Acquire, 1, Answer::Corrupt);
    store.script_of("shop:b", Call::Acquire, 1, Answer::Denied);
    let kinds = [locks.mutex("b").try_acquire().await, locks.mutex("b").try_acquire().await]
        .map(|tried| tried.unwrap_err().kind());
    assert_eq!(kinds, [ErrorKind::Denied, ErrorKind::Corrupt]);
}

#[test]
#[should_panic(expected = "Held is an answer of Call::Acquire alone, not of Call::Renew")]
fn a_script_refuses_answers_the_call_cannot_give() {
    TestStore::new().script(Call::Renew, 1, Answer::Held);
}

/// A list of many locks is many requests: it has five times as long as the question for one lock.
#[tokio::test]
async fn a_list_has_ten_seconds_and_one_lock_has_two() {
    let store = TestStore::new();
    let locks = store.locks();
    let _guard = locks.mutex("k").acquire().await.unwrap();

    store.script(Call::Inspect, 1, Answer::Pending);
    let list = tokio::spawn({
        let locks = locks.clone();
        async move { locks.list("").await }
    });
    store.until_called(Call::Inspect, 1).await;
    store.advance(9 * SEC).await;
    store.resume();
    assert_eq!(list.await.unwrap().unwrap().len(), 1);

    for (limit, is_list) in [(2 * SEC, false), (10 * SEC, true)] {
        store.script(Call::Inspect, 1, Answer::Pending);
        let asked = store.elapsed();
        let error = if is_list {
            store.run_within(60 * SEC, locks.list("")).await.unwrap().unwrap_err()
        } else {
            store.run_within(60 * SEC, locks.inspect("k")).await.unwrap().unwrap_err()
        };
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert_eq!(store.elapsed() - asked, limit);
    }
}
