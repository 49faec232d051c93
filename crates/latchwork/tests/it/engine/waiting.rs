//! Waiting at the store: deadlines, wake-ups, unknown effects, exact counts of requests.

use std::sync::atomic::{AtomicU32, Ordering};

use latchwork::LockManager;
use latchwork_store::*;

use crate::engine::support::*;

#[tokio::test(start_paused = true)]
async fn a_free_lock_costs_one_request_and_its_release_one() {
    let world = World::new();
    for round in 1..=5 {
        let guard = world.locks.mutex("k").acquire().await.unwrap();
        guard.release().await.unwrap();
        assert_eq!(world.store.asked(), (round, round));
    }
    assert_eq!(world.store.waits.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_contended_lock_costs_two_tries_and_one_wait() {
    let world = World::new();
    let (store, other) = world.another();
    let held = world.locks.mutex("k").acquire().await.unwrap();
    let mutex = other.mutex("k");
    let (guard, ()) = tokio::join!(mutex.acquire(), async {
        world.io.sleep(SEC).await;
        held.release().await.unwrap();
    });
    drop(guard.unwrap());
    assert_eq!(store.tries.load(Ordering::SeqCst), 2);
    assert_eq!(store.waits.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_bounded_wait_ends_in_time_and_names_the_holder() {
    let world = World::new();
    let (_, other) = world.another();
    let held = world.locks.mutex("k").holder("worker 7").acquire().await.unwrap();
    let start = world.io.now();
    let error = other.mutex("k").acquire_within(5 * SEC).await.unwrap_err();
    assert_eq!(world.io.now().since(start), 5 * SEC);
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    for part in ["worker 7", "5s", "\"k\"", "mem:"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    world.settle().await;
    let seen = world.locks.inspect("k").await.unwrap();
    assert!(seen.waiters.is_empty(), "the place in line is given up");
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_order_with_one_wake_up_each() {
    let world = World::new();
    let held = world.locks.mutex("k").ttl(60 * SEC).acquire().await.unwrap();
    let order = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    let mut stores = Vec::new();
    for n in 0..8 {
        let (store, locks) = world.another();
        stores.push(store);
        let order = order.clone();
        tasks.push(tokio::spawn(async move {
            let guard = locks.mutex("k").ttl(60 * SEC).acquire().await.unwrap();
            order.lock().unwrap().push((n, guard.token()));
            guard.release().await.unwrap();
        }));
        world.settle().await;
    }
    held.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    let order = order.lock().unwrap();
    assert!(order.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 < w[1].1), "{order:?}");
    for store in stores {
        assert_eq!(store.tries.load(Ordering::SeqCst), 2, "one to enter, one to take");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_holder_is_taken_over_when_its_ttl_ends() {
    let world = World::new();
    let (dying_store, dying) = world.another();
    // Less than the shortest pause between two looks, which is 8 s.
    let held = dying.mutex("k").ttl(7 * SEC).acquire().await.unwrap();
    let start = world.io.now();
    dying_store.plan(|_| Fault::Hang);
    let guard = world.locks.mutex("k").ttl(60 * SEC).acquire().await.unwrap();
    assert_eq!(world.io.now().since(start), 7 * SEC, "not a moment later, and no polling");
    assert_eq!(world.store.tries.load(Ordering::SeqCst), 2);
    assert!(guard.token() > held.token());
}

#[tokio::test(start_paused = true)]
async fn h19_a_retry_under_the_same_id_settles_a_lost_answer() {
    let world = World::new();
    let mut lose = true;
    world.store.plan(move |asked| {
        if asked == Asked::Try && std::mem::take(&mut lose) {
            Fault::LoseAnswer
        } else {
            Fault::None
        }
    });
    let start = world.io.now();
    let guard = world.locks.mutex("k").acquire().await.unwrap();
    assert!(world.io.now().since(start) < SEC, "not stuck behind its own first try");
    assert_eq!(world.store.asked(), (2, 0), "the name is tried again, nothing is released");
    guard.release().await.unwrap();
    assert!(world.is_empty().await);
}

#[tokio::test(start_paused = true)]
async fn h19_no_lost_message_leaves_an_orphan_or_a_false_hold() {
    for kind in [Fault::LoseAnswer, Fault::LoseRequest, Fault::DelayAnswer(3 * SEC), Fault::Hang] {
        for lost in 0..12 {
            let world = World::new();
            let (_, other) = world.another();
            let mut n = 0;
            world.store.plan(move |_| {
                n += 1;
                if n - 1 == lost { kind } else { Fault::None }
            });
            for round in 0..3 {
                let mutex = world.locks.mutex("k").ttl(9 * SEC);
                let Ok(guard) = mutex.acquire().await else { continue };
                world.io.sleep(4 * SEC).await;
                if guard.ensure_held().is_ok() {
                    assert!(other.mutex("k").try_acquire().await.unwrap().is_none());
                }
                if round == 1 {
                    drop(guard)
                } else {
                    let _ = guard.release().await;
                }
            }
            world.io.sleep(9 * SEC).await;
            assert!(world.is_empty().await, "{kind:?} of request {lost} left something");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_store_is_an_error_in_bounded_time() {
    let world = World::new();
    world.store.plan(|_| Fault::Hang);
    let start = world.io.now();
    let mutex = world.locks.mutex("k").ttl(9 * SEC);
    assert_eq!(mutex.try_acquire().await.unwrap_err().kind(), ErrorKind::Unreachable);
    assert_eq!(world.io.now().since(start), 2 * SEC, "the time limit of one verb");
    let start = world.io.now();
    let error = mutex.acquire_within(3 * SEC).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(world.io.now().since(start) <= 3 * SEC + 250 * MS);
    let start = world.io.now();
    assert_eq!(mutex.acquire().await.unwrap_err().kind(), ErrorKind::Unreachable);
    assert!(world.io.now().since(start) <= 11 * SEC, "a ttl without an answer");
}

/// A look that the end of the wait cuts says little of a store that has said that the lock is held.
#[tokio::test(start_paused = true)]
async fn a_wait_whose_last_look_is_cut_short_is_timed_out() {
    for (left, kind) in [(600 * MS, ErrorKind::TimedOut), (700 * MS, ErrorKind::Unreachable)] {
        let world = World::new();
        let guard = world.locks.mutex("k").ttl(9 * SEC).acquire().await.unwrap();
        let (store, other) = world.another();
        let mutex = other.mutex("k").ttl(9 * SEC);
        let ends = async {
            world.io.sleep(SEC - left).await;
            store.plan(|_| Fault::Hang);
            guard.release().await.unwrap();
        };
        let (error, ()) = tokio::join!(mutex.acquire_within(SEC), ends);
        assert_eq!(error.unwrap_err().kind(), kind, "{left:?} are left");
    }
}

/// The last try of a bounded wait has little time: what the store said before it is what a reader needs.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_wait_tells_what_the_store_said_last() {
    let world = World::new();
    let tries = AtomicU32::new(0);
    world.store.plan(move |_| match tries.fetch_add(1, Ordering::SeqCst) {
        0 => Fault::LoseRequest,
        _ => Fault::Hang,
    });
    let error = world.locks.mutex("k").ttl(9 * SEC).acquire_within(SEC).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.may_have_applied());
    assert!(error.to_string().contains("the connection broke"), "{error}");
    // A try that had its full time tells that.
    world.store.plan(|_| Fault::Hang);
    let error = world.locks.mutex("k").ttl(9 * SEC).try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("no answer within 2s"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_acquire_retries_until_the_store_answers() {
    let world = World::new();
    let io = world.io.clone();
    let start = world.io.now();
    world.store.plan(move |_| {
        if io.now().since(start) < 4 * SEC { Fault::LoseRequest } else { Fault::None }
    });
    let guard = world.locks.mutex("k").ttl(9 * SEC).acquire().await.unwrap();
    assert!(world.io.now().since(start) < 5 * SEC);
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn fair_waiters_queue_separately_at_the_store() {
    let world = World::new();
    let (_, other) = world.another();
    let held = world.locks.mutex("k").fair().acquire().await.unwrap();
    let served = std::sync::Mutex::new(Vec::new());
    let wait = |name: &'static str, locks: &LockManager| {
        let mutex = locks.mutex("k").fair();
        let served = &served;
        async move {
            let guard = mutex.acquire().await.unwrap();
            served.lock().unwrap().push((name, guard.token()));
        }
    };
    let (one, two, three) = (wait("a", &world.locks), wait("b", &other), wait("c", &world.locks));
    tokio::join!(one, two, three, async {
        world.settle().await;
        assert_eq!(world.locks.inspect("k").await.unwrap().waiters.len(), 3);
        held.release().await.unwrap();
    });
    let served = served.lock().unwrap();
    assert_eq!(served.iter().map(|s| s.0).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert!(served.windows(2).all(|w| w[0].1 < w[1].1));
}

#[tokio::test(start_paused = true)]
async fn a_stalled_first_waiter_delays_the_next_for_seconds() {
    let world = World::new();
    let ttl = 6 * 3_600 * SEC;
    let ((store, _), (_, third)) = (world.another(), world.another());
    let held = world.locks.mutex("k").ttl(ttl).acquire().await.unwrap();
    // It has its place, and then its process stops.
    let (key, id) = (Key::new("k").unwrap(), ClaimId::from_u128(7));
    let stopped = Claim::new(key, id, Mode::Exclusive, ttl, Stamp::new(world.io.now()));
    assert!(matches!(store.try_acquire(&stopped).await, Ok(Attempt::Blocked(_))));
    let next = third.mutex("k").ttl(ttl);
    let (guard, released) = tokio::join!(next.acquire(), async {
        world.io.sleep(SEC).await;
        held.release().await.unwrap();
        world.io.now()
    });
    drop(guard.unwrap());
    let waited = world.io.now().since(released);
    assert!(waited <= 10 * SEC, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn all_local_waiters_time_out_together() {
    let world = World::new();
    world.store.plan(|_| Fault::LoseRequest);
    let start = world.io.now();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..6 {
        let (mutex, io) = (world.locks.mutex("k").ttl(9 * SEC), world.io.clone());
        tasks.spawn(async move {
            let answer = match n {
                5 => mutex.acquire_within(3 * SEC).await,
                _ => mutex.acquire().await,
            };
            (n, answer.unwrap_err().kind(), io.now().since(start))
        });
    }
    for (n, kind, took) in tasks.join_all().await {
        assert_eq!(kind, ErrorKind::Unreachable, "waiter {n}");
        let most = if n == 5 { 3_500 * MS } else { 11 * SEC };
        assert!(took <= most, "waiter {n}: {took:?}");
    }
}
