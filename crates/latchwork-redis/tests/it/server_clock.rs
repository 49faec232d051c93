//! A server whose wall clock is stepped, stands still, or runs fast: what a plain server promises.

#![allow(clippy::disallowed_methods, reason = "tests")]

use crate::common::*;
use latchwork::HoldState;
use latchwork_services::{Direction, RedisOptions};
use latchwork_store::*;

fn with_clock() -> World {
    World::with(&RedisOptions::new().with_clock())
}

/// H44: the clock is stepped forward over the end of a lease: somebody else is granted the key;
/// the old holder is told by its next renewal and has the smaller token.
#[test]
fn h44_a_clock_step_forward_is_found_by_the_next_renewal() {
    run(async {
        let world = with_clock();
        // Renewed each second, whatever the ttl.
        let client = Client::new(&world.server.url(), 60 * SEC).await;
        let locks = client.locks.clone().renew_every(SEC);
        let guard = locks.mutex("k").acquire().await.unwrap();
        let other = Client::warm(&world.server.url(), 60 * SEC).await;
        world.server.clock().unwrap().step_forward(61 * SEC).unwrap();
        let next = within("the key is free", SLACK, other.acquire("k")).await;
        assert!(next.token() > guard.token());
        let lost = within("the holder is told", SEC + SLACK, guard.lost()).await;
        assert_eq!(lost.reason, LostReason::Taken);
        assert_eq!(next.state(), HoldState::Held);
    });
}

/// H44: the clock is stepped back: nobody is granted a key that is held, a hold is kept by its
/// renewals, and tokens still rise.
#[test]
fn h44_a_clock_step_back_makes_no_second_holder() {
    run(async {
        let world = with_clock();
        let ttl = 1_800 * MS;
        let client = Client::warm(&world.server.url(), ttl).await;
        let other = Client::warm(&world.server.url(), ttl).await;
        let guard = client.acquire("k").await;
        world.server.clock().unwrap().step_back(3_600 * SEC).unwrap();
        let renewed = client.story.renewed();
        until("two renewals", 2 * ttl, || client.story.renewed() >= renewed + 2).await;
        assert!(other.mutex("k").try_acquire().await.unwrap().is_none());
        assert!(client.story.lost().is_empty());
        let token = guard.token();
        guard.release().await.unwrap();
        let guard = other.acquire("k").await;
        assert!(guard.token() > token);
        // Another connection, which looks at the clock, gives no smaller one either.
        let token = guard.token();
        guard.release().await.unwrap();
        let third = Client::new(&world.server.url(), ttl).await;
        assert!(third.acquire("k").await.token() > token);
    });
}

/// H44: a holder that dies right before a step back keeps its key for the step longer. A renewal
/// or a forced release sets it right.
#[test]
fn h44_after_a_step_back_a_renewal_sets_the_end_right() {
    run(async {
        let world = with_clock();
        let backend = connect(&world.server.url()).await;
        let mine = claim("k", SEC);
        granted(&backend, &mine).await;
        world.server.clock().unwrap().step_back(3_600 * SEC).unwrap();
        assert!(world.number(&["PTTL", "k"]) > 3_500_000);
        assert!(matches!(renew(&backend, &mine).await, Ok(Renewal::Held { .. })));
        assert!(world.number(&["PTTL", "k"]) <= 1_000);
        until("its end", SEC + SLACK, || !world.is_held("k")).await;
    });
}

/// H45: the clock stands still, so the key of a dead holder never ends: a forced release does it.
#[test]
fn h45_force_frees_a_key_under_a_stopped_clock() {
    run(async {
        let world = with_clock();
        let backend = connect(&world.server.url()).await;
        let client = Client::warm(&world.server.url(), SEC).await;
        let dead = claim("k", 400 * MS);
        let token = granted(&backend, &dead).await;
        world.server.clock().unwrap().rate(-1_000_000).unwrap();
        pause(600 * MS).await;
        assert!(client.mutex("k").try_acquire().await.unwrap().is_none());
        let forced = client.locks.force_release("k").await.unwrap();
        assert_eq!(forced.evicted.len(), 1);
        let guard = client.acquire("k").await;
        assert!(guard.token().grant_number() > token);
        // Its own hold ends by the holder's clock, and a release needs no clock.
        guard.release().await.unwrap();
        world.empties(SEC).await;
    });
}

/// H46: the clock runs 10 % fast: after two renewals the holder counts on that much less, and
/// nobody overlaps when its renewals stop.
#[test]
fn h46_a_fast_store_clock_shortens_the_validity() {
    run(async {
        let world = with_clock();
        let ttl = 2_400 * MS;
        let client = Client::new(&world.proxy.url(), ttl).await;
        let guard = client.acquire("k").await;
        world.server.clock().unwrap().rate(100_000).unwrap();
        until("it is told", 4 * ttl, || client.story.unsteady() > 0).await;
        let bound = ttl.mul_f64(0.91);
        for _ in 0..2 {
            let renewed = client.story.renewed();
            until("the next renewal", ttl, || client.story.renewed() > renewed).await;
            // Right after a renewal its belief is at its longest.
            assert!(guard.remaining() <= bound, "{:?}", guard.remaining());
            assert_eq!(guard.state(), HoldState::Held);
        }
        // No more renewals come through: the holder stops before the server lets others in. A look
        // at the guard is in time however late the watchdog's thread gets the processor.
        world.proxy.freeze(Direction::ToServer);
        until("the server lets go", 2 * ttl, || {
            let _ = guard.state();
            !world.is_held("k")
        })
        .await;
        let free_since = io().now();
        let HoldState::Lost(lost) = guard.state() else { panic!("the holder goes on") };
        assert_eq!(lost.reason, LostReason::Expired);
        assert!(lost.at < free_since);
    });
}
