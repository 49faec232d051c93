//! A key that stays closed for a while after a hold that ended without a release.

use std::sync::atomic::Ordering;
use std::time::Duration;

use latchwork::{HoldState, LostReason};

use crate::engine::support::*;

/// What the store would keep the claim for.
async fn left_at_the_store(world: &World) -> Duration {
    let seen = world.locks.inspect("k").await.unwrap();
    seen.holders[0].remaining.unwrap()
}

/// The store cannot be reached: the hold is over a ttl after it was confirmed last, and the key opens a
/// delay after that.
#[tokio::test(start_paused = true)]
async fn a_renewal_counts_no_lock_delay() {
    let world = World::new();
    let lock = world.locks.mutex("k").ttl(9 * SEC).lock_delay(20 * SEC);
    let guard = lock.acquire().await.unwrap();
    assert_eq!(guard.ttl(), 9 * SEC);
    world.io.sleep(60 * SEC).await;
    assert_eq!((guard.state(), guard.ttl()), (HoldState::Held, 9 * SEC));
    let left = left_at_the_store(&world).await;
    assert!(left > 25 * SEC && left <= 30 * SEC, "{left:?}");
    let silent_since = world.io.now();
    world.store.plan(|_| Fault::LoseRequest);
    let lost = guard.lost().await;
    assert_eq!(lost.reason, LostReason::Expired);
    let took = lost.at.since(silent_since);
    assert!(took > 5 * SEC && took <= 9 * SEC, "{took:?}");
    world.store.behave();
    assert!(world.another().1.mutex("k").try_acquire().await.unwrap().is_none());
    let next = world.another().1.mutex("k").acquire().await.unwrap();
    let closed = world.io.now().since(lost.at);
    assert!(closed >= 20 * SEC && closed <= 22 * SEC, "{closed:?}");
    drop((guard, next));
}

/// Its clock counts the delay as well.
#[tokio::test(start_paused = true)]
async fn a_fast_store_keeps_the_key_closed_for_the_whole_delay() {
    for rate in [1_500, 2_000] {
        let world = World::new();
        world.store.clock_runs_at(1_000);
        let lock = world.locks.mutex("k").ttl(12 * SEC).lock_delay(3 * SEC);
        let guard = lock.acquire().await.unwrap();
        world.io.sleep(4 * SEC).await;
        world.store.clock_runs_at(rate);
        world.io.sleep(20 * SEC).await;
        assert_eq!(guard.state(), HoldState::Held, "rate {rate}");
        world.store.plan(|_| Fault::Hang);
        let next = world.another().1.mutex("k");
        let (lost, next) = tokio::join!(guard.lost(), next.acquire());
        let closed = world.io.now().since(lost.at);
        assert!(closed >= 3 * SEC, "rate {rate}: {closed:?}");
        drop(next);
    }
}

/// A hold that was ended by its longest time has a claim that the store would keep for long.
#[tokio::test(start_paused = true)]
async fn a_lost_hold_is_given_back_after_the_delay() {
    let world = World::new();
    let lock = world.locks.mutex("k").max_hold(SEC).lock_delay(5 * SEC);
    let guard = lock.acquire().await.unwrap();
    let lost = guard.lost().await;
    drop(guard);
    let again = lock.acquire().await.unwrap();
    let closed = world.io.now().since(lost.at);
    assert!(closed >= 5 * SEC && closed <= 6 * SEC, "{closed:?}");
    again.release().await.unwrap();
    let start = world.io.now();
    drop(lock.acquire().await.unwrap());
    let dropped = lock.acquire().await.unwrap();
    assert!(world.io.now().since(start) < SEC, "a drop opens the key");
    dropped.release().await.unwrap();
}

/// Its grant is too short to hold the delay: the waiter asks once more.
#[tokio::test(start_paused = true)]
async fn a_pushed_grant_with_a_delay_is_made_whole_first() {
    let world = World::new();
    let first = world.locks.mutex("k").fair().acquire().await.unwrap();
    let (store, locks) = world.another();
    store.pushes.store(true, Ordering::SeqCst);
    let lock = locks.mutex("k").ttl(9 * SEC).lock_delay(20 * SEC).fair();
    let (second, released) = tokio::join!(lock.acquire(), async {
        world.io.sleep(SEC).await;
        first.release().await
    });
    released.unwrap();
    let second = second.unwrap();
    assert!(second.remaining() > 8 * SEC, "{:?}", second.remaining());
    assert!(left_at_the_store(&world).await > 28 * SEC);
}

/// The store would keep the claim for a minute. It comes back when the ttl is over and the delay is not.
#[tokio::test(start_paused = true)]
async fn a_missed_release_is_repeated_until_the_delay_is_over() {
    let world = World::new();
    let lock = world.locks.mutex("k").ttl(9 * SEC).lock_delay(60 * SEC);
    let guard = lock.acquire().await.unwrap();
    world.store.plan(|_| Fault::LoseRequest);
    drop(guard);
    world.io.sleep(20 * SEC).await;
    world.store.behave();
    let back = world.io.now();
    drop(world.another().1.mutex("k").acquire().await.unwrap());
    let took = world.io.now().since(back);
    assert!(took <= 4 * SEC, "the key was closed for {took:?} longer");
}

/// One hold was lost before, and one is alive. Their keys stay closed for the delay all the same, and the store is
/// asked to open them then.
#[tokio::test(start_paused = true)]
async fn a_close_does_not_wait_for_a_lock_delay() {
    let world = World::new();
    let locks = world.locks.clone().lock_delay(20 * SEC);
    let alive = locks.mutex("k").acquire().await.unwrap();
    let lost = locks.mutex("lost").max_hold(SEC).acquire().await.unwrap();
    let lost_at = lost.lost().await.at;
    world.io.sleep(3 * SEC).await;
    let closed_at = world.io.now();
    world.locks.close().await;
    assert!(world.io.now().since(closed_at) < SEC, "{:?}", world.io.now().since(closed_at));
    assert!(
        matches!(alive.state(), HoldState::Lost(lost) if lost.reason == LostReason::SessionEnded)
    );
    let (_, others) = world.another();
    for (key, ended_at) in [("lost", lost_at), ("k", closed_at)] {
        let _next = others.mutex(key).acquire().await.unwrap();
        let closed = world.io.now().since(ended_at);
        assert!(closed >= 20 * SEC && closed <= 22 * SEC, "{key}: {closed:?}");
    }
}

/// What is released at its end is waited for.
#[tokio::test(start_paused = true)]
async fn a_close_waits_for_a_release_after_a_lock_delay() {
    let world = World::new();
    let lock = world.locks.mutex("k").max_hold(SEC).lock_delay(5 * SEC);
    let lost_at = lock.acquire().await.unwrap().lost().await.at;
    world.store.plan(|asked| match asked {
        Asked::Release => Fault::DelayAnswer(2 * SEC),
        _ => Fault::None,
    });
    world.io.sleep(6 * SEC - world.io.now().since(lost_at)).await;
    world.locks.close().await;
    let took = world.io.now().since(lost_at);
    assert!(took >= 7 * SEC, "{took:?}");
}
