//! Dropping futures anywhere.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use latchwork::ErrorKind;
use latchwork_store::*;

use crate::engine::support::*;

/// Polls a future so many times, then drops it. `Some` if it ended before.
async fn polled<F: Future>(future: F, mut times: u32) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        if times == 0 {
            return Poll::Ready(None);
        }
        times -= 1;
        let poll = future.as_mut().poll(cx).map(Some);
        if poll.is_pending() && times == 0 {
            return Poll::Ready(None);
        }
        poll
    })
    .await
}

/// Runs a future for so long, then drops it.
async fn for_a_while<F: Future>(io: &Io, length: Duration, future: F) -> Option<F::Output> {
    io.within(length, future).await
}

#[tokio::test(start_paused = true)]
async fn h25_an_acquire_dropped_at_any_poll_leaves_nothing() {
    for polls in 0..12 {
        for delay in [Fault::None, Fault::DelayAnswer(MS), Fault::DelayRequest(MS)] {
            let world = World::new();
            let (_, other) = world.another();
            world.store.plan(move |_| delay);
            let held =
                if polls % 2 == 0 { None } else { Some(other.mutex("k").acquire().await.unwrap()) };
            let got = polled(world.locks.mutex("k").acquire(), polls).await;
            drop((got, held));
            world.io.sleep(SEC).await;
            assert!(world.is_empty().await, "polls {polls}, {delay:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn h25_a_release_dropped_at_any_poll_completes() {
    for polls in 0..6 {
        let world = World::new();
        world.store.plan(|_| Fault::DelayRequest(MS));
        let guard = world.locks.mutex("k").acquire().await.unwrap();
        let _ = polled(guard.release(), polls).await;
        world.io.sleep(SEC).await;
        assert!(world.is_empty().await, "polls {polls}");
    }
}

#[tokio::test(start_paused = true)]
async fn h20_a_late_try_is_released_after_it_has_landed() {
    let world = World::new();
    // The request is under way when its caller goes; the release must not overtake it.
    world.store.plan(|asked| match asked {
        Asked::Try => Fault::DelayRequest(500 * MS),
        _ => Fault::None,
    });
    assert!(for_a_while(&world.io, 100 * MS, world.locks.mutex("k").acquire()).await.is_none());
    world.io.sleep(600 * MS).await;
    assert!(world.is_empty().await, "gone as soon as it was answered, not by the ttl");
}

/// A world whose store receives the first try after half a second.
fn with_a_slow_first_try() -> World {
    let world = World::new();
    let mut tries = 0;
    world.store.plan(move |asked| {
        tries += u32::from(asked == Asked::Try);
        if asked == Asked::Try && tries == 1 { Fault::DelayRequest(500 * MS) } else { Fault::None }
    });
    world
}

/// The heir has the same claim: what it gets must not be released before the try has landed.
#[tokio::test(start_paused = true)]
async fn h20_an_inherited_try_lands_before_its_heir_tries() {
    let world = with_a_slow_first_try();
    let mutex = world.locks.mutex("k");
    let heir = async {
        world.io.sleep(MS).await;
        drop(mutex.acquire().await.unwrap());
        world.settle().await;
        assert!(world.is_empty().await, "released");
        world.io.now()
    };
    let start = world.io.now();
    let (gone, done) = tokio::join!(for_a_while(&world.io, 100 * MS, mutex.acquire()), heir);
    assert!(gone.is_none());
    let took = done.since(start);
    assert!(took < 600 * MS, "the heir waits for the answer, and no longer: {took:?}");
    world.io.sleep(600 * MS).await;
    assert!(world.is_empty().await, "no late try has planted it again");
}

/// A third waits for the answer in its place.
#[tokio::test(start_paused = true)]
async fn h20_an_heir_waits_no_longer_than_its_own_time() {
    let world = with_a_slow_first_try();
    let mutex = world.locks.mutex("k");
    let start = world.io.now();
    let heir = async {
        world.io.sleep(MS).await;
        let error = mutex.acquire_within(150 * MS).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let took = world.io.now().since(start);
        assert!(took <= 152 * MS, "{took:?}");
    };
    let third = async {
        world.io.sleep(2 * MS).await;
        drop(mutex.acquire().await.unwrap());
        let took = world.io.now().since(start);
        assert!((500 * MS..600 * MS).contains(&took), "{took:?}");
    };
    let (gone, (), ()) =
        tokio::join!(for_a_while(&world.io, 100 * MS, mutex.acquire()), heir, third);
    assert!(gone.is_none());
    world.io.sleep(600 * MS).await;
    assert!(world.is_empty().await, "no late try has planted it again");
}

/// Ten thousand acquires, each dropped after a random while, over two processes, with waiters of
/// both kinds, slow answers and holds in between.
#[tokio::test(start_paused = true)]
async fn h25_ten_thousand_acquires_dropped_at_random_leave_nothing() {
    let world = World::new();
    let (store, other) = world.another();
    for store in [&world.store, &store] {
        let mut n = 0u32;
        store.plan(move |_| {
            n += 1;
            match n % 7 {
                0 => Fault::DelayAnswer(2 * MS),
                3 => Fault::DelayRequest(MS),
                _ => Fault::None,
            }
        });
    }
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..20 {
        let (locks, io) =
            (if task % 2 == 0 { &world.locks } else { &other }.clone(), world.io.clone());
        tasks.spawn(async move {
            let mut held = 0;
            for round in 0..500 {
                let mut mutex = locks.mutex(format!("k{}", (task + round) % 3));
                if round % 5 == 0 {
                    mutex = mutex.fair();
                }
                let patience = random_between(Duration::ZERO, 12 * MS);
                if let Some(guard) = for_a_while(&io, patience, mutex.acquire()).await {
                    let guard = guard.unwrap();
                    guard.ensure_held().unwrap();
                    held += 1;
                    if round % 3 == 0 {
                        io.sleep(MS).await;
                    }
                }
            }
            held
        });
    }
    let held: u32 = tasks.join_all().await.iter().sum();
    assert!(held > 500 && held < 10_000, "{held} of 10,000 were admitted");
    world.io.sleep(SEC).await;
    assert!(world.is_empty().await);
    for n in 0..3 {
        let guard = world.locks.mutex(format!("k{n}")).try_acquire().await.unwrap();
        assert!(guard.is_some(), "no line is left behind in the process either");
    }
}
