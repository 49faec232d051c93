//! A ttl that follows the hold times of its key.

use std::sync::atomic::Ordering;

use latchwork_core::*;

use crate::support::*;

fn bounds() -> AdaptiveTtl {
    AdaptiveTtl { shortest: 2 * SEC, longest: 30 * SEC }
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
    assert!(world.store.renewals.load(Ordering::SeqCst) > 60);
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
async fn who_waits_learns_from_the_holder_in_its_way() {
    let world = World::new();
    let (_, other) = world.another();
    let lock = world.locks.mutex("k").adaptive_ttl(bounds());
    hold(&world, &lock, 20, 50 * MS).await;
    let held = lock.acquire().await.unwrap();
    let seen = other.inspect("k").await.unwrap();
    assert!(seen.holders[0].holder.ends_with(" ms]"), "{seen:?}");
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

#[tokio::test(start_paused = true)]
async fn bounds_are_checked_against_each_other_and_the_rest() {
    let world = World::new();
    for (lock, step) in [
        (
            world.locks.mutex("k").adaptive_ttl(AdaptiveTtl { shortest: MS / 1_000, ..bounds() }),
            "choose other bounds",
        ),
        (
            world.locks.mutex("k").adaptive_ttl(AdaptiveTtl { shortest: 31 * SEC, ..bounds() }),
            "choose other bounds",
        ),
    ] {
        let error = lock.acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().starts_with("adaptive_ttl:"), "{error}");
        assert!(error.hint().unwrap().starts_with(step), "{error}");
    }
    let said_last = world.locks.clone().adaptive_ttl(bounds()).mutex("k").ttl(7 * SEC);
    assert_eq!(said_last.acquire().await.unwrap().ttl(), 7 * SEC);
    let every = world.locks.clone().renew_every(5 * SEC).mutex("k").adaptive_ttl(bounds());
    let error = every.acquire().await.unwrap_err();
    assert!(error.message().starts_with("renew_every:"), "{error}");
}
