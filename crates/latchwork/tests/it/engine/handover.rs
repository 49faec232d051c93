//! Waiters of one process: one line, one place in the store, handover.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use latchwork::{Handover, HoldState};
use latchwork_store::*;
use tokio::task::JoinSet;

use crate::engine::support::*;

#[tokio::test(start_paused = true)]
async fn a_handover_sends_no_request_and_raises_the_token() {
    let world = World::new();
    let first = world.locks.mutex("k").acquire().await.unwrap();
    let mutex = world.locks.mutex("k");
    let (second, token) = tokio::join!(mutex.acquire(), async {
        world.settle().await;
        let token = first.token();
        first.release().await.unwrap();
        token
    });
    let second = second.unwrap();
    assert_eq!(world.store.asked(), (1, 0));
    assert!(second.token() > token);
    assert_eq!(second.token().grant_number(), token.grant_number(), "the same grant");
    drop(second);
    world.settle().await;
    assert_eq!(world.store.asked(), (1, 1));
    assert!(world.is_empty().await);
}

#[tokio::test(start_paused = true)]
async fn thousands_of_handovers_starve_no_waiter() {
    let world = World::new();
    let tokens = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for n in 0..16 {
        let (mutex, tokens) = (world.locks.mutex("k"), tokens.clone());
        tasks.spawn(async move {
            for _ in 0..200 {
                let guard = mutex.acquire().await.unwrap();
                tokens.lock().unwrap().push((n, guard.token()));
                tokio::task::yield_now().await;
                guard.ensure_held().unwrap();
            }
        });
    }
    tasks.join_all().await;
    let tokens = tokens.lock().unwrap();
    assert_eq!(tokens.len(), 3200);
    assert!(tokens.windows(2).all(|w| w[0].1 < w[1].1));
    // First come, first served: once all wait, nobody gets two turns before everybody had one.
    let full: Vec<_> = tokens[16..2400].to_vec();
    assert!(
        full.windows(16).all(|w| w
            .iter()
            .map(|t| t.0)
            .collect::<std::collections::HashSet<_>>()
            .len()
            == 16)
    );
    let (tries, _) = world.store.asked();
    assert!(tries <= 6, "about one grant in a thousand handovers: {tries}");
}

#[tokio::test(start_paused = true)]
async fn a_hold_returns_to_the_store_after_its_slice() {
    let world = World::new();
    let (_, other) = world.another();
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let (mutex, io) = (world.locks.mutex("k"), world.io.clone());
        tasks.spawn(async move {
            for _ in 0..50 {
                let guard = mutex.acquire().await.unwrap();
                io.sleep(MS).await;
                drop(guard);
            }
        });
    }
    world.settle().await;
    for _ in 0..5 {
        let start = world.io.now();
        let guard = other.mutex("k").acquire().await.unwrap();
        let waited = world.io.now().since(start);
        assert!(waited <= 12 * MS, "a slice of 10 ms and one hold: {waited:?}");
        drop(guard);
        world.io.sleep(3 * MS).await;
    }
    tasks.join_all().await;
}

#[tokio::test(start_paused = true)]
async fn handover_switched_off_goes_to_the_store_each_time() {
    let world = World::new();
    let locks = world.locks.clone().handover(Handover::OFF);
    let first = locks.mutex("k").acquire().await.unwrap();
    let mutex = locks.mutex("k");
    let (second, ()) = tokio::join!(mutex.acquire(), async {
        world.settle().await;
        first.release().await.unwrap();
    });
    drop(second);
    assert_eq!(world.store.tries.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn no_handover_in_the_second_half_of_the_ttl() {
    let world = World::new();
    let locks = world.locks.clone().ttl(100 * MS).handover(Handover::new(50 * MS, 9));
    let (store, io) = (&world.store, &world.io);
    store.plan(|asked| if asked == Asked::Renew { Fault::Hang } else { Fault::None });
    let first = locks.mutex("k").acquire().await.unwrap();
    let mutex = locks.mutex("k");
    let (second, ()) = tokio::join!(mutex.acquire(), async {
        io.sleep(49 * MS).await;
        first.release().await.unwrap();
    });
    assert_eq!(store.tries.load(Ordering::SeqCst), 2, "97 ms of validity, 48 left: back it goes");
    assert!(second.unwrap().remaining() > 90 * MS);
}

#[tokio::test(start_paused = true)]
async fn a_local_try_sends_no_request() {
    let world = World::new();
    let held = world.locks.mutex("k").acquire().await.unwrap();
    for _ in 0..100 {
        assert!(world.locks.mutex("k").try_acquire().await.unwrap().is_none());
    }
    assert_eq!(world.store.asked(), (1, 0));
    drop(held);
    world.settle().await;
    assert!(world.locks.mutex("k").try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn h550_a_loop_of_tries_lets_the_holder_release() {
    let World { locks, .. } = World::new();
    let (mutex, lights, page) = (locks.mutex("k"), locks.semaphore("s", 1), locks.rwlock("p"));
    for _ in 0..2 {
        let held = (mutex.acquire().await.unwrap(), lights.acquire().await.unwrap());
        let other_reader = page.read().acquire().await.unwrap();
        let holder = tokio::spawn(async {
            tokio::task::yield_now().await;
            held.0.release().await.unwrap();
            held.1.release().await.unwrap();
            tokio::task::yield_now().await;
            other_reader.release().await.unwrap();
        });
        let mut tries = 0..1_000;
        while mutex.try_acquire().await.unwrap().is_none() {
            tries.next().expect("the holder runs");
        }
        while lights.acquire_within(std::time::Duration::ZERO).await.is_err() {
            tries.next().expect("the holder runs");
        }
        let mut reader = page.read().acquire().await.unwrap();
        while reader.try_upgrade().await.unwrap().is_none() {
            tries.next().expect("the holder runs");
        }
        holder.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_local_waiter_inherits_the_store_place() {
    let world = World::new();
    let (_, other) = world.another();
    let (_, third) = world.another();
    let held = other.mutex("k").acquire().await.unwrap();
    let (leader, heir, late) = (world.locks.mutex("k"), world.locks.mutex("k"), third.mutex("k"));
    let served = std::sync::Mutex::new(Vec::new());
    tokio::join!(
        async { assert!(leader.acquire_within(2 * SEC).await.is_err()) },
        async {
            let guard = heir.acquire().await.unwrap();
            served.lock().unwrap().push("heir");
            drop(guard);
        },
        async {
            world.io.sleep(SEC).await;
            let guard = late.acquire().await.unwrap();
            served.lock().unwrap().push("late");
            drop(guard);
        },
        async {
            world.io.sleep(3 * SEC).await;
            let seen = world.locks.inspect("k").await.unwrap();
            assert_eq!(seen.waiters.len(), 2);
            held.release().await.unwrap();
        }
    );
    assert_eq!(
        *served.lock().unwrap(),
        ["heir", "late"],
        "the line's place was before the late one"
    );
}

#[tokio::test(start_paused = true)]
async fn a_waiter_of_another_ttl_asks_the_store_itself() {
    let world = World::new();
    let first = world.locks.mutex("k").acquire().await.unwrap();
    let mutex = world.locks.mutex("k").ttl(20 * SEC);
    let (second, ()) = tokio::join!(mutex.acquire(), async {
        world.settle().await;
        first.release().await.unwrap();
    });
    assert_eq!(second.unwrap().ttl(), 20 * SEC);
    assert_eq!(world.store.tries.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn local_waiters_continue_after_a_loss() {
    let world = World::new();
    let lost = world.locks.mutex("k").ttl(9 * SEC).acquire().await.unwrap();
    let mutex = world.locks.mutex("k").ttl(9 * SEC);
    let (next, _) = tokio::join!(mutex.acquire(), async {
        world.settle().await;
        world.locks.force_release("k").await.unwrap()
    });
    let next = next.unwrap();
    assert!(next.token() > lost.token());
    assert!(matches!(lost.state(), HoldState::Lost(_)));
    drop(lost);
    world.settle().await;
    assert_eq!(next.ensure_held(), Ok(next.token()), "the old guard's drop frees nothing");
}

#[tokio::test(start_paused = true)]
async fn max_hold_counts_anew_for_each_handover() {
    let world = World::new();
    let locks = world.locks.clone().ttl(9 * SEC).max_hold(20 * SEC);
    let locks = locks.handover(Handover::new(4 * SEC, 10));
    let first = locks.mutex("k").acquire().await.unwrap();
    let mutex = locks.mutex("k");
    let (second, ()) = tokio::join!(mutex.acquire(), async {
        world.io.sleep(2 * SEC).await;
        drop(first);
    });
    let (second, start) = (second.unwrap(), world.io.now());
    let lost = second.lost().await;
    assert_eq!(lost.reason, LostReason::MaxHold);
    assert_eq!(lost.at.since(start), 20 * SEC);
}

#[tokio::test(start_paused = true)]
async fn a_short_max_hold_does_not_keep_a_hold_from_passing_on() {
    let world = World::new();
    let locks = world.locks.clone().max_hold(2 * SEC);
    let first = locks.mutex("k").acquire().await.unwrap();
    let mutex = locks.mutex("k");
    let (second, ()) = tokio::join!(mutex.acquire(), async {
        world.settle().await;
        drop(first);
    });
    drop(second);
    assert_eq!(world.store.tries.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_with_other_options_gets_its_own_hold() {
    let world = World::new();
    let first = world.locks.mutex("k").acquire().await.unwrap();
    let wishes = world.locks.mutex("k").max_hold(2 * SEC).holder("second");
    let (second, ()) = tokio::join!(wishes.acquire(), async {
        world.settle().await;
        drop(first);
    });
    let second = second.unwrap();
    assert_eq!(world.store.tries.load(Ordering::SeqCst), 2);
    let seen = world.locks.inspect("k").await.unwrap();
    assert_eq!(&*seen.holders[0].holder.text, "second");
    assert_eq!(second.lost().await.reason, LostReason::MaxHold);
}

/// The store may have granted the key to anybody meanwhile.
#[tokio::test(start_paused = true)]
async fn h215_a_grant_that_was_taken_away_is_not_handed_over() {
    let world = World::new();
    let locks = world.locks.clone().ttl(9 * SEC).handover(Handover::new(4 * SEC, 10));
    let first = locks.mutex("k").acquire().await.unwrap();
    let mutex = locks.mutex("k");
    let (second, released) = tokio::join!(mutex.acquire(), async {
        world.settle().await;
        let released = locks.force_release("k").await.unwrap();
        // Known at once, and not at the next renewal.
        assert!(matches!(first.state(), HoldState::Lost(lost) if lost.reason == LostReason::Taken));
        let token = first.token();
        drop(first);
        (released, token)
    });
    let (second, (released, token)) = (second.unwrap(), released);
    assert_eq!(released.evicted.len(), 1);
    assert!(second.token().grant_number() > token.grant_number(), "the grant was handed over");
    world.io.sleep(20 * SEC).await;
    assert_eq!(second.ensure_held(), Ok(second.token()), "the next holder was not evicted");
}
