//! Grants that the store makes by itself: short at first, and whole from the first renewal on.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use latchwork::{Guard, HoldState, LockManager};
use latchwork_store::*;

use crate::engine::support::*;

const TTL: std::time::Duration = std::time::Duration::from_secs(9);

/// That of the short ttl, and a hundredth of the second from the try to the push.
const DRIFT: std::time::Duration = std::time::Duration::from_millis(22 + 10);

/// Lets `other` wait for a key that is released a second later; what it gets, and the moment of the
/// release, at which the store pushes the grant.
async fn pushed(world: &World, other: &LockManager) -> (Guard, Moment) {
    let held = world.locks.mutex("k").acquire().await.unwrap();
    let mutex = other.mutex("k").ttl(TTL);
    let (guard, pushed_at) = tokio::join!(mutex.acquire(), async {
        world.io.sleep(SEC).await;
        held.release().await.unwrap();
        world.io.now()
    });
    (guard.unwrap(), pushed_at)
}

/// Another process, on a store that pushes.
fn pushing(world: &World) -> (Arc<Faulty>, LockManager) {
    let (store, other) = world.another();
    store.pushes.store(true, Ordering::SeqCst);
    (store, other)
}

#[tokio::test(start_paused = true)]
async fn a_pushed_grant_counts_from_the_push() {
    let world = World::new();
    let (store, other) = pushing(&world);
    let (guard, pushed_at) = pushed(&world, &other).await;
    assert_eq!(world.io.now().since(pushed_at), 100 * MS, "read 100 ms after it was made");
    assert_eq!(guard.valid_until(), pushed_at.plus(PUSHED_TTL - DRIFT));
    assert_eq!(guard.ttl(), PUSHED_TTL);
    assert_eq!(store.tries.load(Ordering::SeqCst), 1, "no second try");
    world.io.sleep(PUSHED_TTL / 3 - 111 * MS).await;
    assert_eq!(store.renewals.load(Ordering::SeqCst), 0);
    world.io.sleep(2 * MS).await;
    assert_eq!(store.renewals.load(Ordering::SeqCst), 1, "at a third of the short ttl");
    assert_eq!(guard.ttl(), TTL);
    let renewed_at = world.io.now();
    assert!(guard.remaining() > TTL - 100 * MS, "the full ttl: {:?}", guard.remaining());
    // From here on a third of the full ttl is the pause.
    world.io.sleep(TTL / 3 - 20 * MS).await;
    assert_eq!(store.renewals.load(Ordering::SeqCst), 1);
    world.io.sleep(40 * MS).await;
    assert_eq!(store.renewals.load(Ordering::SeqCst), 2);
    assert!(guard.valid_until() > renewed_at.plus(TTL));
}

/// H83: a push that names a try of the future comes from no store. The waiter asks the store itself.
#[tokio::test(start_paused = true)]
async fn h83_a_push_from_the_future_only_triggers_a_try() {
    let world = World::new();
    let (store, other) = pushing(&world);
    *store.push_ahead.lock().unwrap() = 3_600 * SEC;
    let (guard, _) = pushed(&world, &other).await;
    assert!(guard.remaining() <= TTL, "{:?}", guard.remaining());
    assert_eq!(store.tries.load(Ordering::SeqCst), 2, "it tried again");
}

#[tokio::test(start_paused = true)]
async fn the_third_of_a_push_governs_whatever_pause_was_asked_for() {
    let world = World::new();
    let (store, other) = pushing(&world);
    let other = other.renew_every(4 * SEC);
    let (guard, pushed_at) = pushed(&world, &other).await;
    world.io.sleep(pushed_at.plus(PUSHED_TTL / 3 + MS).since(world.io.now())).await;
    assert_eq!(store.renewals.load(Ordering::SeqCst), 1);
    world.io.sleep(3_900 * MS).await;
    assert_eq!(store.renewals.load(Ordering::SeqCst), 1, "afterwards the pause that was asked for");
    world.io.sleep(200 * MS).await;
    assert_eq!(store.renewals.load(Ordering::SeqCst), 2);
    assert_eq!(guard.state(), HoldState::Held);
}

#[tokio::test(start_paused = true)]
async fn a_push_whose_first_renewal_is_lost_is_renewed_again_in_time() {
    for limit in [None, Some(4 * SEC)] {
        let world = World::new();
        let (store, mut other) = pushing(&world);
        if let Some(limit) = limit {
            other = other.op_timeout(limit);
        }
        let mut first = true;
        store.plan(move |asked| match asked {
            // No error, nothing: only the time limit ends it, and it must fit the short ttl.
            Asked::Renew if std::mem::take(&mut first) => Fault::Hang,
            _ => Fault::None,
        });
        let (guard, _) = pushed(&world, &other).await;
        world.io.sleep(PUSHED_TTL).await;
        assert_eq!(guard.ensure_held(), Ok(guard.token()), "limit {limit:?}");
        assert_eq!(store.renewals.load(Ordering::SeqCst), 2, "limit {limit:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_unconfirmed_push_ends_with_its_short_ttl() {
    let world = World::new();
    let (store, other) = pushing(&world);
    store.plan(|asked| if asked == Asked::Renew { Fault::LoseRequest } else { Fault::None });
    let (guard, pushed_at) = pushed(&world, &other).await;
    let lost = guard.lost().await;
    assert_eq!(lost.reason, LostReason::Expired);
    assert_eq!(lost.at, pushed_at.plus(PUSHED_TTL - DRIFT));
}

#[tokio::test(start_paused = true)]
async fn a_push_older_than_half_its_ttl_is_released() {
    for (delay, taken) in [(960 * MS, true), (970 * MS, false)] {
        let world = World::new();
        let (store, other) = pushing(&world);
        *store.push_delay.lock().unwrap() = delay;
        let (guard, pushed_at) = pushed(&world, &other).await;
        let (tries, releases) = store.asked();
        if taken {
            assert_eq!((tries, releases), (1, 0));
            assert_eq!(guard.valid_until(), pushed_at.plus(PUSHED_TTL - DRIFT));
        } else {
            assert_eq!(releases, 1, "given back under its own name");
            assert!(tries >= 2, "tried again under another");
            assert!(guard.remaining() >= PUSHED_TTL / 2);
            let holders = other.inspect("k").await.unwrap().holders;
            assert_eq!(holders.len(), 1);
        }
        guard.release().await.unwrap();
        world.settle().await;
        assert!(world.is_empty().await);
    }
}
