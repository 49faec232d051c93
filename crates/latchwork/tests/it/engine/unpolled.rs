//! Futures that are kept and not polled.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use latchwork::{Event, Handover, Observer, Owner};
use latchwork_store::*;

use crate::engine::support::*;

/// For how long a kept future may delay others.
const BOUND: Duration = Duration::from_secs(2);

/// Polls a future once.
async fn poll<F: Future + ?Sized>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

/// Polls a future that has to wait until it has nothing more to do at once.
async fn begins<F: Future>(world: &World, mut future: Pin<&mut F>) {
    for _ in 0..8 {
        assert!(poll(future.as_mut()).await.is_pending());
        world.settle().await;
    }
}

/// How long something took that another task does.
async fn within_bound<T>(world: &World, what: impl Future<Output = Result<T, Error>>) -> T {
    let start = world.io.now();
    let done = world.io.within(10 * SEC, what).await.expect("delayed by a future nobody polls");
    let took = world.io.now().since(start);
    assert!(took <= BOUND, "delayed by {took:?}");
    done.unwrap()
}

#[tokio::test(start_paused = true)]
async fn h101_a_hold_handed_to_an_unpolled_future_passes_on() {
    let world = World::new();
    let mutex = world.locks.mutex("k");
    let held = mutex.acquire().await.unwrap();
    let mut kept = pin!(mutex.acquire());
    begins(&world, kept.as_mut()).await;
    let mut second = pin!(mutex.acquire());
    begins(&world, second.as_mut()).await;
    held.release().await.unwrap();
    let guard = within_bound(&world, second).await;
    // Later ones come after the one that has waited before.
    let mut third = pin!(mutex.acquire());
    begins(&world, third.as_mut()).await;
    begins(&world, kept.as_mut()).await;
    guard.release().await.unwrap();
    assert!(poll(third.as_mut()).await.is_pending());
    let first = kept.await.unwrap();
    first.ensure_held().unwrap();
    first.release().await.unwrap();
    third.await.unwrap().release().await.unwrap();
    assert!(world.is_empty().await);
}

/// The classic way to it: a branch of `select!` acquires the key that the kept future waits for.
#[tokio::test(start_paused = true)]
async fn h101_select_with_a_second_acquire_of_the_key_goes_on() {
    let world = World::new();
    let mutex = world.locks.mutex("k");
    let held = mutex.acquire().await.unwrap();
    let kept = mutex.acquire();
    tokio::pin!(kept);
    tokio::select! {
        _ = &mut kept => panic!("it is held"),
        () = world.io.sleep(SEC) => {
            held.release().await.unwrap();
            within_bound(&world, mutex.acquire()).await.release().await.unwrap();
        }
    }
    kept.await.unwrap().release().await.unwrap();
    assert!(world.is_empty().await);
}

#[tokio::test(start_paused = true)]
async fn h101_a_lead_given_to_an_unpolled_future_passes_on() {
    let world = World::new();
    let mutex = world.locks.clone().handover(Handover::OFF).mutex("k");
    let held = mutex.acquire().await.unwrap();
    let mut kept = pin!(mutex.acquire());
    begins(&world, kept.as_mut()).await;
    let mut second = pin!(mutex.acquire());
    begins(&world, second.as_mut()).await;
    held.release().await.unwrap();
    within_bound(&world, second).await.release().await.unwrap();
    kept.await.unwrap().release().await.unwrap();
    assert!(world.is_empty().await);
}

/// The kept future has the place of its process at the store, which another process is behind.
#[tokio::test(start_paused = true)]
async fn h101_an_unpolled_leader_delays_nobody() {
    for elsewhere in [false, true] {
        let world = World::new();
        let (_, other) = world.another();
        let held = other.mutex("k").acquire().await.unwrap();
        let mutex = world.locks.mutex("k");
        let mut kept = pin!(mutex.acquire());
        begins(&world, kept.as_mut()).await;
        let next = if elsewhere { other.mutex("k") } else { mutex.clone() };
        let mut next = pin!(next.acquire());
        if !elsewhere {
            begins(&world, next.as_mut()).await;
        }
        // Through the store, where the kept one is first.
        held.release().await.unwrap();
        within_bound(&world, next).await.release().await.unwrap();
        kept.await.unwrap().release().await.unwrap();
        assert!(world.is_empty().await);
    }
}

/// A store that pushes has granted the lock to the kept future already.
#[tokio::test(start_paused = true)]
async fn a_grant_pushed_to_an_unpolled_future_is_given_back() {
    for fair in [false, true] {
        let world = World::new();
        world.store.pushes.store(true, Ordering::SeqCst);
        let (_, other) = world.another();
        let held = other.mutex("k").acquire().await.unwrap();
        let mutex = if fair { world.locks.mutex("k").fair() } else { world.locks.mutex("k") };
        let mut kept = pin!(mutex.acquire());
        begins(&world, kept.as_mut()).await;
        held.release().await.unwrap();
        within_bound(&world, other.mutex("k").acquire()).await.release().await.unwrap();
        kept.await.unwrap().release().await.unwrap();
        assert!(world.is_empty().await);
    }
}

#[tokio::test(start_paused = true)]
async fn h101_an_unpolled_release_completes() {
    let world = World::new();
    let mutex = world.locks.clone().handover(Handover::OFF).mutex("k");
    let guard = mutex.acquire().await.unwrap();
    world.store.plan(|asked| match asked {
        Asked::Release => Fault::DelayRequest(100 * MS),
        _ => Fault::None,
    });
    let mut release = pin!(guard.release());
    assert!(poll(release.as_mut()).await.is_pending());
    let bound = BOUND + 100 * MS;
    let start = world.io.now();
    let next = world.io.within(10 * SEC, mutex.acquire()).await.expect("delayed for ever");
    assert!(world.io.now().since(start) <= bound);
    release.await.unwrap();
    next.unwrap().release().await.unwrap();
    assert!(world.is_empty().await);
}

/// What a release says is not lost with the polls: here that the hold was.
#[tokio::test(start_paused = true)]
async fn h101_an_unpolled_release_reports_an_overlap() {
    let world = World::new();
    let guard = world.locks.mutex("k").acquire().await.unwrap();
    let (_, other) = world.another();
    other.force_release("k").await.unwrap();
    world.store.plan(|asked| match asked {
        Asked::Release => Fault::DelayAnswer(100 * MS),
        _ => Fault::None,
    });
    let mut release = pin!(guard.release());
    assert!(poll(release.as_mut()).await.is_pending());
    world.io.sleep(5 * SEC).await;
    assert_eq!(release.await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn h101_an_unpolled_multi_lock_releases_its_locks() {
    let world = World::new();
    let (_, other) = world.another();
    let held = other.mutex("b").acquire().await.unwrap();
    let both = world.locks.multi(["a", "b"]);
    let mut kept = pin!(both.acquire());
    begins(&world, kept.as_mut()).await;
    held.release().await.unwrap();
    within_bound(&world, other.mutex("a").acquire()).await.release().await.unwrap();
    kept.await.unwrap().release().await.unwrap();
    assert!(world.is_empty().await);
}

#[tokio::test(start_paused = true)]
async fn h101_an_unpolled_call_of_an_owner_leaves_its_turn() {
    let world = World::new();
    let (_, other) = world.another();
    let held = other.mutex("k").acquire().await.unwrap();
    let (mutex, me) = (world.locks.reentrant("k"), Owner::named("me"));
    let mut kept = pin!(mutex.acquire(&me));
    begins(&world, kept.as_mut()).await;
    let mut second = pin!(mutex.acquire(&me));
    begins(&world, second.as_mut()).await;
    held.release().await.unwrap();
    let second = within_bound(&world, second).await;
    // The first one enters what the other call got.
    let first = kept.await.unwrap();
    assert_eq!(first.token(), second.token());
    drop((first, second));
    world.settle().await;
    assert!(world.is_empty().await);
}

/// Counts claims that were taken back.
#[derive(Default)]
struct TakenBack(AtomicU32);

impl Observer for TakenBack {
    fn event(&self, event: &Event<'_>) {
        if let Event::Settled { .. } = event {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// A waiter that is polled, however rarely it is woken, keeps its place.
#[tokio::test(start_paused = true)]
async fn a_future_that_is_polled_keeps_its_place() {
    let world = World::new();
    let (_, other) = world.another();
    let held = other.mutex("k").acquire().await.unwrap();
    let taken = Arc::new(TakenBack::default());
    let locks = world.locks.clone().observer(taken.clone());
    let (mine, theirs) = (locks.mutex("k"), other.mutex("k").fair());
    let mut first = pin!(mine.acquire());
    begins(&world, first.as_mut()).await;
    let mut late = pin!(theirs.acquire());
    begins(&world, late.as_mut()).await;
    let both = async {
        let first = world.io.within(600 * SEC, first.as_mut()).await;
        assert!(first.is_none(), "it is held");
    };
    tokio::select! {
        () = both => {}
        _ = &mut late => panic!("it is held"),
    }
    assert_eq!(taken.0.load(Ordering::SeqCst), 0);
    held.release().await.unwrap();
    let guard = world.io.within(SEC, first).await.expect("its place was first").unwrap();
    assert!(poll(late.as_mut()).await.is_pending());
    guard.release().await.unwrap();
    late.await.unwrap().release().await.unwrap();
}

/// A runtime that is blocked for a while costs a try, and no lock.
#[tokio::test(start_paused = true)]
async fn an_unpolled_bounded_acquire_times_out() {
    let world = World::new();
    let (_, other) = world.another();
    let held = other.mutex("k").acquire().await.unwrap();
    let mutex = world.locks.mutex("k");
    let start = world.io.now();
    let mut kept = pin!(mutex.acquire_within(20 * SEC));
    begins(&world, kept.as_mut()).await;
    // It is woken to keep its place, and loses it.
    world.io.sleep(15 * SEC).await;
    let error = kept.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let took = world.io.now().since(start);
    assert!(took >= 20 * SEC && took < 21 * SEC, "{took:?}");
    held.release().await.unwrap();
    world.settle().await;
    assert!(world.is_empty().await);
}

/// Acquires of two processes, kept unpolled for a while, polled again or dropped.
#[tokio::test(start_paused = true)]
async fn two_thousand_kept_and_dropped_futures_leave_nothing() {
    let world = World::new();
    let (_, other) = world.another();
    let kept: Mutex<Vec<_>> = Mutex::default();
    let mutex = world.locks.mutex("k");
    for n in 0..2_000u32 {
        let mut future = Box::pin({
            let mutex = if n % 7 == 0 { other.mutex("k") } else { mutex.clone() };
            async move { mutex.acquire().await }
        });
        match poll(future.as_mut()).await {
            Poll::Ready(guard) => drop(guard.unwrap()),
            Poll::Pending => kept.lock().unwrap().push(future),
        }
        if n % 3 == 0 {
            world.io.sleep(Duration::from_millis(u64::from(n % 997))).await;
        }
        if n % 11 == 0 {
            let at = n as usize % kept.lock().unwrap().len().max(1);
            let future = {
                let mut kept = kept.lock().unwrap();
                if at < kept.len() { Some(kept.swap_remove(at)) } else { None }
            };
            if let Some(future) = future {
                if n % 2 == 0 {
                    let _ = world.io.within(SEC, future).await;
                } else {
                    drop(future);
                }
            }
        }
    }
    kept.into_inner().unwrap().clear();
    world.io.sleep(60 * SEC).await;
    assert!(world.is_empty().await);
    mutex.try_acquire().await.unwrap().expect("free").release().await.unwrap();
}
