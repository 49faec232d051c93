//! A ttl that follows the hold times of its key.

use std::sync::atomic::Ordering;

use latchwork::{AdaptiveTtl, Lock};
use latchwork_store::*;

use crate::engine::support::*;

fn bounds() -> AdaptiveTtl {
    AdaptiveTtl::between(2 * SEC, 30 * SEC)
}

async fn hold(world: &World, lock: &Lock, times: u32, length: std::time::Duration) {
    for _ in 0..times {
        let guard = lock.acquire().await.unwrap();
        world.io.sleep(length).await;
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn short_holds_get_a_short_ttl_and_no_renewal() {
    let world = World::new();
    let lock = world.locks.mutex("k").adaptive_ttl(bounds());
    assert_eq!(lock.acquire().await.unwrap().ttl(), 30 * SEC, "nothing is known yet");
    hold(&world, &lock, 20, 50 * MS).await;
    let guard = lock.acquire().await.unwrap();
    assert_eq!(guard.ttl(), 2 * SEC);
    drop(guard);
    let other = world.locks.mutex("another").adaptive_ttl(bounds());
    assert_eq!(other.acquire().await.unwrap().ttl(), 30 * SEC, "each key has its own");
    assert_eq!(world.store.renewals.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_longer_than_usual_is_renewed() {
    let world = World::new();
    let lock = world.locks.mutex("k").adaptive_ttl(bounds());
    hold(&world, &lock, 20, 50 * MS).await;
    let guard = lock.acquire().await.unwrap();
    world.io.sleep(60 * SEC).await;
    guard.ensure_held().unwrap();
    assert!(world.store.renewals.load(Ordering::SeqCst) >= 6);
}

#[tokio::test(start_paused = true)]
async fn long_holds_get_the_longest_ttl() {
    let world = World::new();
    let lock = world.locks.mutex("k").adaptive_ttl(bounds());
    hold(&world, &lock, 20, 15 * SEC).await;
    assert_eq!(lock.acquire().await.unwrap().ttl(), 30 * SEC);
    hold(&world, &lock, 200, SEC).await;
    assert_eq!(lock.acquire().await.unwrap().ttl(), 4 * SEC);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_learns_the_ttl_from_the_holder() {
    let world = World::new();
    let (_, other) = world.another();
    let lock = world.locks.mutex("k").adaptive_ttl(bounds());
    hold(&world, &lock, 20, 50 * MS).await;
    let held = lock.acquire().await.unwrap();
    let seen = other.inspect("k").await.unwrap();
    assert!(seen.holders[0].holder.usual_hold.is_some(), "{seen:?}");
    let theirs = other.mutex("k").adaptive_ttl(bounds());
    theirs.acquire_within(SEC).await.unwrap_err();
    held.release().await.unwrap();
    assert_eq!(theirs.acquire().await.unwrap().ttl(), 2 * SEC);
}

#[tokio::test(start_paused = true)]
async fn holds_are_handed_over_though_ttls_differ() {
    let world = World::new();
    let lock = world.locks.mutex("k").adaptive_ttl(bounds());
    hold(&world, &lock, 9, MS).await;
    // The first still has the longest ttl; the tenth hold makes it known that a short one will do.
    let first = lock.acquire().await.unwrap();
    assert_eq!(first.ttl(), 30 * SEC);
    let tries = world.store.tries.load(Ordering::SeqCst);
    let (second, _) = tokio::join!(lock.acquire(), first.release());
    let (third, _) = tokio::join!(lock.acquire(), second.unwrap().release());
    third.unwrap().ensure_held().unwrap();
    assert_eq!(world.store.tries.load(Ordering::SeqCst), tries, "no trip to the store");
}

/// Holds that are lost because the ttl was too short for them teach that it was.
#[tokio::test(start_paused = true)]
async fn h113_lost_holds_teach_a_longer_ttl() {
    let world = World::new();
    let lock = world.locks.mutex("k").adaptive_ttl(bounds());
    hold(&world, &lock, 20, 50 * MS).await;
    for _ in 0..3 {
        world.store.plan(|asked| if asked == Asked::Renew { Fault::Hang } else { Fault::None });
        let guard = lock.acquire().await.unwrap();
        assert_eq!(guard.lost().await.reason, LostReason::Expired);
        drop(guard);
        world.store.behave();
        world.io.sleep(SEC).await;
    }
    let ttl = lock.acquire().await.unwrap().ttl();
    assert!(ttl >= 8 * SEC, "holds of 2 s and more were lost under a ttl of {ttl:?}");
}

/// A hold that is still there at its first renewal is longer than expected: it gets the longest ttl,
/// which costs fewer renewals and survives longer outages.
#[tokio::test(start_paused = true)]
async fn h113_a_hold_that_proves_long_gets_the_longest_ttl() {
    let world = World::new();
    let lock = world.locks.mutex("k").adaptive_ttl(bounds());
    hold(&world, &lock, 20, 50 * MS).await;
    let guard = lock.acquire().await.unwrap();
    assert_eq!(guard.ttl(), 2 * SEC);
    world.io.sleep(SEC).await;
    assert_eq!(guard.ttl(), 30 * SEC, "from the first renewal on");
    world.io.sleep(59 * SEC).await;
    guard.ensure_held().unwrap();
    assert!(world.store.renewals.load(Ordering::SeqCst) <= 7);
    // The store keeps it for the longest ttl now, so its release is repeated for as long.
    world.store.plan(|_| Fault::LoseRequest);
    drop(guard);
    world.io.sleep(10 * SEC).await;
    world.store.behave();
    world.io.sleep(4 * SEC).await;
    assert!(world.is_empty().await, "given back long before its ttl was over");
}

#[tokio::test(start_paused = true)]
async fn bounds_are_checked_against_each_other_and_the_rest() {
    let world = World::new();
    for (lock, step) in [
        (
            world.locks.mutex("k").adaptive_ttl(AdaptiveTtl::between(MS / 1_000, bounds().longest)),
            "choose other bounds",
        ),
        (
            world.locks.mutex("k").adaptive_ttl(AdaptiveTtl::between(31 * SEC, bounds().longest)),
            "choose other bounds",
        ),
    ] {
        let error = lock.acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().starts_with("adaptive_ttl:"), "{error}");
        assert!(error.next_step().unwrap().starts_with(step), "{error}");
    }
    let said_last = world.locks.clone().adaptive_ttl(bounds()).mutex("k").ttl(7 * SEC);
    assert_eq!(said_last.acquire().await.unwrap().ttl(), 7 * SEC);
    let every = world.locks.clone().renew_every(5 * SEC).mutex("k").adaptive_ttl(bounds());
    let error = every.acquire().await.unwrap_err();
    assert!(error.message().starts_with("renew_every:"), "{error}");
}
