//! The clock stands still until the test moves it, on every runtime and on none.

use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use futures_util::FutureExt;
use latchwork::once::OnceOutcome;
use latchwork::testing::{Call, TestStore};
use latchwork::{BlockOn, ErrorKind, HoldState, LostReason, Period};

use super::{SEC, TTL};

/// A day of renewals, a loss by the clock, and a waiter that gets the lock.
async fn a_day(store: &TestStore) {
    let guard = store.locks().mutex("k").acquire().await.unwrap();
    store.advance(24 * 60 * 60 * SEC).await;
    assert_eq!(guard.state(), HoldState::Held);
    assert!(store.count(Call::Renew) >= 24 * 60 * 6 - 1, "every 10 s: {store:?}");
    let (there, waiting) = (store.locks(), tokio::spawn);
    let waiter = waiting(async move { there.mutex("k").acquire().await.unwrap() });
    store.until_called(Call::Wait, 1).await;
    assert!(!waiter.is_finished());
    store.suspend(TTL).await;
    assert_eq!(guard.lost().await.reason, LostReason::Expired);
    let next = store.run_within(TTL, waiter).await.expect("the ttl is over").unwrap();
    assert!(next.token() > guard.token());
}

/// 30 s of ttl, ten minutes of clock: under a second.
#[tokio::test]
async fn a_ttl_of_30_s_takes_under_a_second() {
    let mut least = Duration::MAX;
    // A busy machine adds to each of them.
    for _ in 0..3 {
        let start = Instant::now();
        let store = TestStore::new();
        let guard = store.locks().mutex("k").ttl(TTL).acquire().await.unwrap();
        store.advance(600 * SEC).await;
        assert_eq!(guard.state(), HoldState::Held);
        store.set_reachable(false);
        store.advance(TTL).await;
        assert_eq!(guard.lost().await.reason, LostReason::Expired);
        least = least.min(start.elapsed());
        assert_eq!(store.elapsed(), 630 * SEC);
    }
    assert!(least < SEC, "took {least:?}");
}

#[tokio::test]
async fn a_day_passes_on_one_thread() {
    a_day(&TestStore::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_passes_on_several_threads() {
    a_day(&TestStore::new()).await;
}

/// tokio's own clock, paused as well, is another one.
#[tokio::test(start_paused = true)]
async fn the_test_clock_runs_beside_the_tokio_clock() {
    let start = tokio::time::Instant::now();
    a_day(&TestStore::new()).await;
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[test]
fn time_passes_for_threads_that_block() {
    let store = TestStore::new();
    let held = store.locks().mutex("k").acquire().block_on().unwrap();
    let there = store.locks();
    let waiter = std::thread::spawn(move || {
        there.mutex("k").acquire_within(5 * SEC).block_on().unwrap_err().kind()
    });
    store.until_called(Call::Wait, 1).block_on();
    store.advance(5 * SEC).block_on();
    assert_eq!(waiter.join().unwrap(), ErrorKind::TimedOut);
    store.advance(TTL).block_on();
    assert_eq!(held.state(), HoldState::Held);
    held.release().block_on().unwrap();
}

/// What is due in between happens in between, and at its time.
#[tokio::test]
async fn nothing_happens_before_its_time() {
    let store = TestStore::new();
    let guard = store.locks().mutex("k").max_hold(60 * SEC).acquire().await.unwrap();
    store.advance(60 * SEC - Duration::from_millis(1)).await;
    assert_eq!(guard.state(), HoldState::Held);
    store.advance(Duration::from_millis(1)).await;
    assert_eq!(guard.lost().await.reason, LostReason::MaxHold);
}

/// A future that nobody polls holds the clock up for a moment, and not for ever.
#[tokio::test]
async fn a_task_that_does_not_poll_stops_no_clock() {
    let store = TestStore::new();
    let guard = store.locks().mutex("k").acquire().await.unwrap();
    let mut lost = Box::pin(guard.lost());
    assert!((&mut lost).now_or_never().is_none());
    store.suspend(TTL).await;
    assert_eq!(lost.await.reason, LostReason::Expired);
}

/// The clock moves for a call that waits for its time limit, and no further.
#[tokio::test]
async fn a_waiting_call_moves_the_clock_to_its_limit_only() {
    let store = TestStore::new();
    let held = store.locks().mutex("k").acquire().await.unwrap();
    let lock = store.locks().mutex("k");
    let wait = lock.acquire_within(7 * SEC);
    let error = store.run_within(60 * SEC, wait).await.unwrap().unwrap_err();
    assert_eq!((error.kind(), store.elapsed()), (ErrorKind::TimedOut, 7 * SEC));
    assert!(store.run_within(60 * SEC, lock.acquire()).await.is_none(), "it is held for ever");
    assert_eq!(store.elapsed(), 67 * SEC);
    assert_eq!(held.state(), HoldState::Held);
}

#[tokio::test]
async fn two_advancing_tasks_add_up() {
    let store = TestStore::new();
    let other = store.clone();
    tokio::join!(store.advance(40 * SEC), other.advance(2 * SEC));
    assert_eq!(store.elapsed(), 42 * SEC);
}

/// The wall clock starts where the test wants it: a daily task is done once, and again after midnight.
#[tokio::test]
async fn a_daily_task_is_done_once_a_day() {
    // 2026-03-28 23:00 in Berlin, an hour before the day on which clocks are set forward.
    let store = TestStore::starting_at(UNIX_EPOCH + Duration::from_secs(1_774_735_200));
    let report = store.locks().once("report", Period::daily("Europe/Berlin").unwrap());
    // The period stays closed for a moment longer than it lasts, for hosts whose clocks differ.
    let run = async || {
        let run = report.run(async |_| Ok::<_, std::io::Error>(()));
        store.run_within(60 * SEC, run).await.unwrap().unwrap()
    };
    assert!(matches!(run().await, OnceOutcome::Done(())));
    store.advance(59 * 60 * SEC).await;
    assert!(matches!(run().await, OnceOutcome::Skipped(_)));
    store.advance(60 * SEC).await;
    assert!(matches!(run().await, OnceOutcome::Done(())));
    store.advance(22 * 60 * 60 * SEC).await;
    assert!(matches!(run().await, OnceOutcome::Skipped(_)));
    store.advance(60 * 60 * SEC).await;
    assert!(matches!(run().await, OnceOutcome::Done(())), "the day has 23 hours");
}

/// Neither clocks nor locks nor counts of two stores are the same.
#[test]
fn stores_side_by_side_do_not_disturb_each_other() {
    let fence = Arc::new(latchwork::fence::Fence::new());
    let stores: Vec<_> = (0..8).map(|_| TestStore::new()).collect();
    std::thread::scope(|scope| {
        for (n, store) in (1..).zip(&stores) {
            scope.spawn(move || {
                let guard = store.locks().mutex("k").acquire().block_on().unwrap();
                store.advance(n * SEC).block_on();
                if n % 2 == 0 {
                    assert_eq!(store.take_away("k").block_on(), 1);
                }
                assert_eq!(guard.ensure_held().is_ok(), n % 2 == 1);
            });
        }
    });
    for (n, store) in (1..).zip(&stores) {
        assert_eq!((store.elapsed(), store.count(Call::Acquire)), (n * SEC, 1));
    }
    // A fence that several tests share refuses none of a later store.
    for _ in 0..8 {
        let guard = TestStore::new().locks().mutex("k").acquire().block_on().unwrap();
        fence.check_write(guard.token()).unwrap();
    }
}
