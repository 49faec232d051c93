//! Holds without a watchdog: nothing renews them but their owner.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join_all;
use latchwork::{ErrorKind, Event, NotHeld, Observer, Unwatched};
use latchwork_store::validity::{drift, valid_until};
use latchwork_store::*;

use super::support::*;

const TTL: Duration = Duration::from_secs(9);

async fn held(world: &World, name: &str) -> Unwatched {
    let guard = world.locks.mutex(name).ttl(TTL).acquire().await.unwrap();
    Unwatched::of(guard).await.unwrap().0
}

/// Polls a future once, and drops it.
async fn begin(future: impl Future) {
    let mut future = Box::pin(future);
    let is_pending = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await;
    assert!(is_pending, "it has ended at once");
}

#[tokio::test(start_paused = true)]
async fn nothing_renews_a_hold_but_its_owner() {
    let world = World::new();
    let (_, other) = world.another();
    let hold = held(&world, "k").await;
    assert_eq!(world.store.asked(), (1, 0), "a request to the store, or a release");
    for _ in 0..4 {
        world.io.sleep(6 * SEC).await;
        let asked = world.io.now();
        // From any process.
        let until = hold.renew(&other, TTL).await.unwrap();
        assert_eq!(until, valid_until(asked, TTL));
    }
    assert_eq!(world.store.renewals.load(Ordering::SeqCst), 0);
    let last = world.io.now();
    let next = other.mutex("k").acquire().await.unwrap();
    let waited = world.io.now().since(last);
    assert!(waited >= TTL && waited <= TTL + SEC, "{waited:?}");
    let lost = hold.renew(&world.locks, TTL).await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Lost);
    assert!(hold.look(&world.locks).await.unwrap().is_none());
    next.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn validity_counts_from_before_the_request() {
    let world = World::new();
    let hold = held(&world, "k").await;
    for fault in [Fault::DelayAnswer(SEC), Fault::DelayRequest(SEC)] {
        world.store.plan(move |_| fault);
        let sent = world.io.now();
        let until = hold.renew(&world.locks, TTL).await.unwrap();
        assert!(until <= sent.plus(TTL - drift(TTL)), "{fault:?}");
    }
    world.store.behave();
    let asked = world.io.now();
    let seen = hold.look(&world.locks).await.unwrap().unwrap();
    assert!(seen <= asked.plus(TTL - drift(TTL)) && seen > asked.plus(TTL / 2), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn renewals_of_one_turn_are_one_call() {
    let world = World::new();
    let mut holds = Vec::new();
    for number in 0..1_000 {
        holds.push(held(&world, &format!("k{number}")).await);
    }
    let renewed = join_all(holds.iter().map(|hold| hold.renew(&world.locks, TTL))).await;
    assert!(renewed.iter().all(Result::is_ok));
    assert_eq!(world.store.renewals.load(Ordering::SeqCst), 1_000);
    assert_eq!(world.store.renewal_calls.load(Ordering::SeqCst), 2, "of 512 at most");
    // Two requests for one hold share its renewal.
    let (one, two) =
        tokio::join!(holds[2].renew(&world.locks, TTL), holds[2].renew(&world.locks, TTL));
    assert_eq!(one.unwrap(), two.unwrap());
    assert_eq!(world.store.renewals.load(Ordering::SeqCst), 1_001);
    // One that is dropped takes no other with it.
    begin(holds[0].renew(&world.locks, TTL)).await;
    holds[1].renew(&world.locks, TTL).await.unwrap();
}

/// They go to the store together.
#[tokio::test(start_paused = true)]
async fn a_short_ttl_shortens_no_time_limit_but_its_own() {
    let world = World::new();
    let short = world.locks.mutex("short").ttl(SEC).acquire().await.unwrap();
    let (short, long) = (Unwatched::of(short).await.unwrap().0, held(&world, "long").await);
    world.store.plan(|_| Fault::DelayAnswer(500 * MS));
    let (short, long) = tokio::join!(short.renew(&world.locks, SEC), long.renew(&world.locks, TTL));
    assert_eq!(short.unwrap_err().kind(), ErrorKind::Unreachable);
    long.unwrap();
    assert_eq!(world.store.renewal_calls.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_store_without_an_answer_is_no_loss() {
    let world = World::new();
    let hold = held(&world, "k").await;
    for fault in [Fault::Hang, Fault::LoseAnswer, Fault::LoseRequest] {
        world.store.plan(move |_| fault);
        let error = hold.renew(&world.locks, TTL).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{fault:?}: {error}");
        world.store.behave();
        hold.renew(&world.locks, TTL).await.unwrap();
    }
}

/// The network has kept a copy of the acquire. It comes when the hold is over, and others have had the lock since.
#[tokio::test(start_paused = true)]
async fn a_hold_that_a_late_copy_has_planted_is_lost() {
    let world = World::new();
    let hold = held(&world, "k").await;
    world.io.sleep(TTL + SEC).await;
    world.another().1.mutex("k").acquire().await.unwrap().release().await.unwrap();
    let stamp = Stamp::new(world.io.now());
    let claim = Claim::new(hold.key().clone(), hold.id(), hold.mode(), TTL, stamp);
    let planted = world.store.inner.try_acquire(&claim).await.unwrap();
    assert!(matches!(planted, Attempt::Granted(_)), "{planted:?}");
    let error = hold.renew(&world.locks, TTL).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    world.settle().await;
    assert!(world.is_empty().await, "it blocks others");
}

#[tokio::test(start_paused = true)]
async fn a_release_tells_what_the_store_says() {
    let world = World::new();
    let (_, other) = world.another();
    let hold = held(&world, "k").await;
    hold.clone().release(&other, SEC, |_| ()).await.unwrap();
    assert!(world.is_empty().await);
    let again = hold.release(&world.locks, SEC, |_| ()).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Lost, "{again}");
    // It goes on when nobody waits for it.
    let hold = held(&world, "k").await;
    world.store.plan(|_| Fault::LoseRequest);
    begin(hold.release(&world.locks, SEC, |_| ())).await;
    world.store.behave();
    world.io.sleep(SEC).await;
    assert!(world.is_empty().await);
}

#[tokio::test(start_paused = true)]
async fn a_lost_guard_gives_no_hold() {
    let world = World::new();
    let several = world.locks.clone().ttl(TTL).multi(["a", "b"]).acquire().await.unwrap();
    let guard = world.locks.mutex("c").ttl(TTL).acquire().await.unwrap();
    world.locks.force_release("b").await.unwrap();
    world.locks.force_release("c").await.unwrap();
    assert_eq!(Unwatched::of_several(several).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(Unwatched::of(guard).await.unwrap_err().kind(), ErrorKind::Lost);
    world.io.sleep(SEC).await;
    assert!(world.is_empty().await, "a lock of the others stays");
}

/// A guard may have it for a while, such as for an upgrade, and gives it back.
#[tokio::test(start_paused = true)]
async fn a_hold_may_be_lent_to_a_guard() {
    let world = World::new();
    let page = world.locks.clone().ttl(TTL).rwlock("k");
    let hold = Unwatched::of(page.read().acquire().await.unwrap()).await.unwrap().0;
    let (_, other) = world.another();
    let guard = hold.watch(&other).await.unwrap();
    world.io.sleep(3 * TTL).await;
    Unwatched::leave(guard);
    hold.renew(&world.locks, TTL).await.unwrap();
    let mut guard = hold.watch(&other).await.unwrap();
    assert!(guard.upgrade().await.unwrap() > hold.token());
    let written = Unwatched::of(guard).await.unwrap().0;
    world.io.sleep(SEC).await;
    assert_eq!(hold.renew(&world.locks, TTL).await.unwrap_err().kind(), ErrorKind::Lost);
    written.renew(&world.locks, TTL).await.unwrap();
    written.release(&world.locks, SEC, |_| ()).await.unwrap();
    assert!(world.is_empty().await);
}

#[derive(Debug, Default)]
struct Losses(AtomicUsize);

impl Observer for Losses {
    fn event(&self, event: &Event<'_>) {
        if matches!(event, Event::Lost { .. }) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// H470: the process of the guard is cut off from the store for longer than the ttl, while the owner renews elsewhere.
#[tokio::test(start_paused = true)]
async fn h470_a_lent_guard_that_is_lost_leaves_the_hold() {
    let world = World::new();
    let hold = held(&world, "k").await;
    let losses = Arc::new(Losses::default());
    let (store, other) = world.another();
    let lender = other.observer(losses.clone());
    let guard = hold.watch(&lender).await.unwrap();
    store.plan(|_| Fault::LoseRequest);
    let end = world.io.now().plus(2 * TTL);
    while world.io.now() < end {
        hold.renew(&world.locks, TTL).await.unwrap();
        world.io.sleep(2 * SEC).await;
    }
    let lost = guard.ensure_held().unwrap_err();
    assert!(matches!(lost, NotHeld::Lost(it) if it.reason == LostReason::Expired), "{lost:?}");
    store.behave();
    world.io.sleep(SEC).await;
    hold.renew(&world.locks, TTL).await.unwrap();
    // Neither the end of the guard nor that of its manager releases it.
    Unwatched::leave(guard);
    let guard = hold.watch(&lender).await.unwrap();
    lender.close().await;
    drop(guard);
    world.io.sleep(SEC).await;
    hold.renew(&world.locks, TTL).await.unwrap();
    assert_eq!(losses.0.load(Ordering::SeqCst), 0, "the owner has lost nothing");
}
