//! A hold is taken away, and its holder learns of it.

use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::FutureExt;
use latchwork::testing::{Answer, Call, TestStore};
use latchwork::{BlockOn, ErrorKind, HoldState, LostReason, NotHeld};

use super::TTL;

#[tokio::test]
async fn a_forced_release_completes_lost() {
    let store = TestStore::new();
    let guard = store.locks().mutex("k").acquire().await.unwrap();
    assert!(guard.lost().now_or_never().is_none());
    assert_eq!(store.take_away("k").await, 1);
    assert_eq!(guard.lost().now_or_never().unwrap().reason, LostReason::Taken);
    assert!(matches!(guard.state(), HoldState::Lost(_)));
    assert!(matches!(guard.ensure_held(), Err(NotHeld::Lost(_))));
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(store.elapsed().is_zero(), "it took no time");
}

#[test]
fn a_hold_of_a_thread_is_taken_away() {
    let store = TestStore::new();
    let guard = store.locks().mutex("k").acquire().block_on().unwrap();
    let (lost, taken) = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| guard.lost().block_on());
        let taken = store.take_away("k").block_on();
        (waiting.join().unwrap(), taken)
    });
    assert_eq!((lost.reason, taken), (LostReason::Taken, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_under_a_lost_lock_is_dropped() {
    let (store, steps) = (TestStore::new(), AtomicU32::new(0));
    let guard = store.locks().mutex("k").acquire().await.unwrap();
    let work = async {
        loop {
            steps.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
        }
    };
    let (ended, _) = tokio::join!(guard.run(work), store.take_away("k"));
    let ended: Result<std::convert::Infallible, _> = ended;
    assert_eq!(ended.unwrap_err().reason, LostReason::Taken);
    assert!(steps.load(Ordering::SeqCst) > 0);
}

/// The next one in the queue gets what was taken away, with a larger token.
#[tokio::test]
async fn a_waiter_gets_a_revoked_lock() {
    let store = TestStore::new();
    let guard = store.locks().namespace("shop").mutex("k").acquire().await.unwrap();
    let there = store.locks().namespace("shop").mutex("k");
    let waiter = tokio::spawn(async move { there.acquire().await.unwrap() });
    store.until_called(Call::Wait, 1).await;
    assert_eq!(store.take_away("k").await, 0, "that key is another one");
    assert_eq!(store.take_away("shop:k").await, 1);
    assert!(waiter.await.unwrap().token() > guard.token());
}

#[tokio::test]
async fn a_forced_release_ends_all_readers() {
    let store = TestStore::new();
    let page = store.locks().rwlock("page");
    let readers = [page.read().acquire().await.unwrap(), page.read().acquire().await.unwrap()];
    assert_eq!(store.take_away("page").await, 2);
    for reader in &readers {
        assert!(
            matches!(reader.state(), HoldState::Lost(lost) if lost.reason == LostReason::Taken)
        );
    }
    assert!(page.write().try_acquire().await.unwrap().is_some());
}

/// Whose renewals fail does not hear of it, and ends by its own clock.
#[tokio::test]
async fn an_unrenewed_hold_is_lost_by_the_clock() {
    let store = TestStore::new();
    let guard = store.locks().mutex("k").acquire().await.unwrap();
    store.script(Call::Renew, u32::MAX, Answer::Unreachable);
    assert_eq!(store.take_away("k").await, 1);
    assert_eq!(guard.state(), HoldState::Held);
    let lost = store.run_within(TTL, guard.lost()).await.expect("its validity is over");
    assert_eq!(lost.reason, LostReason::Expired);
    assert!(store.elapsed() < TTL);
}

/// A pause of the machine puts a hold in doubt until the store answers.
#[tokio::test]
async fn a_pause_of_the_machine_puts_a_hold_in_doubt() {
    let store = TestStore::new();
    let guard = store.locks().mutex("k").acquire().await.unwrap();
    store.set_reachable(false);
    store.pause_machine(TTL / 2);
    assert_eq!(guard.ensure_held(), Err(NotHeld::Suspect));
    store.set_reachable(true);
    store.advance(TTL / 10).await;
    assert_eq!(guard.ensure_held(), Ok(guard.token()));
    assert_eq!(store.elapsed(), TTL / 10, "the machine's pause is none of the boot clock");
}
