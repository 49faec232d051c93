//! What a holder makes of a store whose clock is set or runs at another rate.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use latchwork::{Guard, HoldState};
use latchwork_store::*;

use crate::engine::support::*;

const TTL: Duration = Duration::from_secs(9);

/// A hold of 9 s at a store that tells the time, and what is told of it.
async fn held(world: &World) -> (Guard, Arc<ClockNews>) {
    world.store.clock_runs_at(1_000);
    let news = Arc::<ClockNews>::default();
    let locks = world.locks.clone().observer(news.clone());
    (locks.mutex("k").ttl(TTL).acquire().await.unwrap(), news)
}

/// Lets answers take this long from now on.
fn slow_answers(world: &World, length: Duration) {
    world.store.plan(move |_| Fault::DelayAnswer(length));
}

#[tokio::test(start_paused = true)]
async fn a_clock_step_makes_the_guard_suspect() {
    for by_ms in [2_000, -7_200_000, 7_200_000] {
        let world = World::new();
        let (guard, news) = held(&world).await;
        world.io.sleep(4 * SEC).await;
        assert_eq!(news.take(), [""; 0]);
        slow_answers(&world, 50 * MS);
        world.store.step_clock(by_ms);
        // Asked at 6 s, answered at 6.05 s, and then once more.
        world.io.sleep(2_060 * MS).await;
        assert_eq!(guard.ensure_held(), Err(NotHeld::Suspect), "by {by_ms} ms");
        let told = news.take();
        let expected = format!("k stepped by {:.0} s", by_ms as f64 / 1e3);
        assert_eq!(told, [expected.as_str(), "k suspect"]);
        world.io.sleep(50 * MS).await;
        assert_eq!(guard.ensure_held(), Ok(guard.token()), "by {by_ms} ms");
        assert_eq!(world.store.renewals.load(Ordering::SeqCst), 3, "asked once more, at once");
        assert_eq!(news.take(), [""; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_does_not_shrink_the_ttl_for_the_rest_of_the_hold() {
    let world = World::new();
    let (guard, news) = held(&world).await;
    world.io.sleep(4 * SEC).await;
    world.store.step_clock(1_500);
    world.io.sleep(2_010 * MS).await;
    assert!(guard.remaining() < 6_100 * MS, "as if it were a rate: {:?}", guard.remaining());
    assert_eq!(news.take().len(), 2);
    world.io.sleep(10 * SEC).await;
    let renewals = world.store.renewals.load(Ordering::SeqCst);
    let start = world.io.now();
    world.io.sleep(300 * SEC).await;
    assert_eq!(world.store.renewals.load(Ordering::SeqCst) - renewals, 100, "every third again");
    assert!(guard.valid_until() > start.plus(305 * SEC));
    assert_eq!(news.take(), [""; 0], "told once");
}

#[tokio::test(start_paused = true)]
async fn a_fast_clock_shrinks_the_validity() {
    for (rate, counted) in [(800, TTL), (1_200, TTL * 10 / 12)] {
        let world = World::new();
        let (guard, news) = held(&world).await;
        world.io.sleep(4 * SEC).await;
        world.store.clock_runs_at(rate);
        world.io.sleep(60 * SEC).await;
        assert_eq!(guard.ensure_held(), Ok(guard.token()), "rate {rate}");
        let told = news.take();
        let unsteady = format!("k unsteady {:.2}", f64::from(rate) / 1e3);
        assert!(told.contains(&unsteady), "{told:?}");
        assert!(told.len() <= 6, "found out once, not at each renewal: {told:?}");
        let start = world.io.now();
        world.io.sleep(counted / 3 + 10 * MS).await;
        assert!(guard.valid_until() <= world.io.now().plus(counted));
        assert!(guard.valid_until() >= start.plus(counted * 9 / 10), "no shorter than it must");
        world.store.clock_runs_at(1_000);
        world.io.sleep(60 * SEC).await;
        assert!(news.take().contains(&"k unsteady 1.00".to_string()));
        assert!(guard.remaining() >= TTL * 6 / 10, "{:?}", guard.remaining());
    }
}

#[tokio::test(start_paused = true)]
async fn a_holder_stops_before_a_fast_store_gives_the_lock_away() {
    for rate in [1_030, 1_100, 1_500, 2_000] {
        let world = World::new();
        let (_, other) = world.another();
        let (guard, _) = held(&world).await;
        world.io.sleep(4 * SEC).await;
        world.store.clock_runs_at(rate);
        world.io.sleep(20 * SEC).await;
        assert_eq!(guard.state(), HoldState::Held, "rate {rate}");
        // From now on nothing reaches the store, which goes by its own fast clock.
        world.store.plan(|_| Fault::Hang);
        let next = other.mutex("k");
        let (lost, (next, taken_at)) =
            tokio::join!(guard.lost(), async { (next.acquire().await.unwrap(), world.io.now()) });
        assert_eq!(lost.reason, LostReason::Expired, "rate {rate}");
        assert!(lost.at < taken_at, "rate {rate}: {:?} {taken_at:?}", lost.at);
        drop(next);
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_never_lengthens_the_validity() {
    let world = World::new();
    let (guard, _) = held(&world).await;
    world.store.clock_runs_at(500);
    for _ in 0..100 {
        world.io.sleep(700 * MS).await;
        assert!(guard.remaining() < TTL - 91 * MS, "{:?}", guard.remaining());
        assert!(guard.ttl() <= TTL);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_clock_set_again_and_again_loses_no_lock() {
    let world = World::new();
    let (guard, news) = held(&world).await;
    for n in 0..50 {
        world.store.step_clock(if n % 3 == 0 { -2_000 } else { 1_000 });
        world.io.sleep(3 * SEC).await;
    }
    world.io.sleep(10 * SEC).await;
    assert_eq!(guard.ensure_held(), Ok(guard.token()));
    assert!(news.take().len() >= 50);
    let renewals = world.store.renewals.load(Ordering::SeqCst);
    assert!(renewals < 250, "asked more often, not all the time: {renewals}");
}
