//! A virtual machine that stood still: its boot clock stopped, the leases ran on at the store, and
//! its wall clock was set right afterwards.

use std::sync::atomic::Ordering;
use std::time::Duration;

use latchwork::{Guard, HoldState, MultiGuard};
use latchwork_store::*;

use crate::engine::support::*;

const TTL: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_secs(26);

/// A hold of 30 s, 9 s after its grant: less is left of it than the machine will stand still.
async fn aged_hold(world: &World) -> Guard {
    let guard = world.locks.mutex("k").ttl(TTL).acquire().await.unwrap();
    world.io.sleep(9 * SEC).await;
    guard
}

fn renewals(world: &World) -> u32 {
    world.store.renewals.load(Ordering::SeqCst)
}

/// The store is silent, so only the size of the step tells that the lease is over.
#[tokio::test(start_paused = true)]
async fn h87_a_silent_store_ends_lost_and_run_within_a_second() {
    let world = World::new();
    let guard = aged_hold(&world).await;
    world.store.plan(|_| Fault::Hang);
    let start = world.io.now();
    let resumed = async {
        world.settle().await;
        world.clock.pause_machine(PAUSE);
    };
    let work = std::future::pending::<()>();
    let (lost, ran, ()) = tokio::join!(guard.lost(), guard.run(work), resumed);
    assert_eq!(lost.reason, LostReason::Expired);
    assert_eq!(ran, Err(lost));
    assert!(world.io.now().since(start) <= SEC, "{:?}", world.io.now().since(start));
    assert_eq!(guard.ensure_held(), Err(NotHeld::Lost(lost)));
    // A store that speaks up later revives nothing.
    world.store.behave();
    world.io.sleep(TTL).await;
    assert_eq!(guard.state(), HoldState::Lost(lost));
}

/// The store gave the key to somebody else meanwhile, and says so.
#[tokio::test(start_paused = true)]
async fn h87_a_store_that_answers_ends_lost_and_run_at_once() {
    let world = World::new();
    let guard = world.locks.mutex("k").ttl(TTL).acquire().await.unwrap();
    world.locks.force_release("k").await.unwrap();
    let start = world.io.now();
    let resumed = async {
        world.settle().await;
        world.clock.pause_machine(PAUSE);
    };
    let (ran, ()) = tokio::join!(guard.run(std::future::pending::<()>()), resumed);
    assert_eq!(ran.unwrap_err().reason, LostReason::Taken);
    assert!(world.io.now().since(start) <= SEC, "{:?}", world.io.now().since(start));
}

/// An operator or a time service sets the clock an hour ahead: the store confirms the hold.
#[tokio::test(start_paused = true)]
async fn h87_a_wall_clock_set_forward_costs_one_renewal_and_no_hold() {
    let world = World::new();
    let guard = aged_hold(&world).await;
    world.store.plan(|_| Fault::DelayAnswer(200 * MS));
    let work = async {
        world.settle().await;
        world.clock.pause_machine(3600 * SEC);
        assert_eq!(guard.ensure_held(), Err(NotHeld::Suspect));
        assert_eq!(guard.remaining(), Duration::ZERO, "as if it had been a pause");
        world.io.sleep(SEC).await;
        assert_eq!(guard.ensure_held(), Ok(guard.token()));
    };
    guard.run(work).await.unwrap();
    assert_eq!(renewals(&world), 1);
    assert!(guard.remaining() > 28 * SEC, "counted from that renewal");
}

/// What is left of the lease is more than the machine stood still: it ends that much earlier.
#[tokio::test(start_paused = true)]
async fn h87_a_pause_shorter_than_the_lease_ends_it_that_much_earlier() {
    let world = World::new();
    let guard = world.locks.mutex("k").ttl(TTL).acquire().await.unwrap();
    let until = guard.valid_until();
    world.store.plan(|_| Fault::Hang);
    world.clock.pause_machine(10 * SEC);
    let lost = guard.lost().await;
    assert_eq!(lost.reason, LostReason::Expired);
    assert!(lost.at >= until.minus(10 * SEC), "not earlier than needed");
    assert!(lost.at <= until.minus(10 * SEC).plus(2 * MS), "{lost:?}");
}

/// No step is large enough to be called a pause; together they are.
#[tokio::test(start_paused = true)]
async fn h87_small_steps_forward_add_up() {
    let world = World::new();
    let guard = world.locks.mutex("k").ttl(TTL).acquire().await.unwrap();
    let until = guard.valid_until();
    world.store.plan(|_| Fault::Hang);
    world.clock.pause_machine(900 * MS);
    assert_eq!(guard.ensure_held(), Ok(guard.token()), "one is no reason for doubt");
    assert_eq!(guard.valid_until(), until.minus(900 * MS), "but counts");
    for _ in 0..9 {
        world.io.sleep(100 * MS).await;
        // Each is taken back, as by two time services that disagree: it may have been a pause.
        world.clock.set_wall_back(900 * MS);
        world.settle().await;
        world.clock.pause_machine(900 * MS);
        world.settle().await;
    }
    assert_eq!(guard.ensure_held(), Err(NotHeld::Suspect));
    let lost = guard.lost().await;
    assert!(lost.at <= until.minus(9 * SEC).plus(2 * MS), "{lost:?}, {until:?}");
}

/// The answer of a renewal that was sent before the pause settles nothing: another one is sent.
#[tokio::test(start_paused = true)]
async fn h87_a_renewal_under_way_over_the_pause_is_sent_again() {
    let world = World::new();
    let guard = aged_hold(&world).await;
    world.store.plan(|_| Fault::DelayAnswer(300 * MS));
    world.io.sleep(1_100 * MS).await;
    assert_eq!(renewals(&world), 1, "under way");
    let work = async {
        world.clock.pause_machine(PAUSE);
        world.io.sleep(SEC).await;
        assert_eq!(guard.ensure_held(), Ok(guard.token()));
    };
    guard.run(work).await.unwrap();
    assert_eq!(renewals(&world), 2);
}

/// A grant whose request was under way over a pause is in doubt from the start.
#[tokio::test(start_paused = true)]
async fn h87_a_grant_under_way_over_the_pause_is_not_worked_under() {
    let world = World::new();
    world.store.plan(|asked| match asked {
        Asked::Try => Fault::DelayAnswer(100 * MS),
        _ => Fault::Hang,
    });
    let mutex = world.locks.mutex("k").ttl(TTL);
    let (guard, ()) = tokio::join!(mutex.acquire(), async {
        world.io.sleep(50 * MS).await;
        world.clock.pause_machine(10 * SEC);
    });
    let guard = guard.unwrap();
    assert_eq!(guard.ensure_held(), Err(NotHeld::Suspect));
    assert_eq!(world.store.asked(), (1, 0));
}

/// One that the pause has made older than half its ttl is given back: others may have held since.
#[tokio::test(start_paused = true)]
async fn h87_a_grant_that_a_pause_has_made_old_is_given_back() {
    let world = World::new();
    let mut first = true;
    world.store.plan(move |asked| match asked {
        Asked::Try if std::mem::take(&mut first) => Fault::DelayAnswer(100 * MS),
        _ => Fault::None,
    });
    let mutex = world.locks.mutex("k").ttl(TTL);
    let (guard, ()) = tokio::join!(mutex.acquire(), async {
        world.io.sleep(50 * MS).await;
        world.clock.pause_machine(60 * SEC);
    });
    let guard = guard.unwrap();
    assert_eq!(guard.ensure_held(), Ok(guard.token()));
    assert_eq!(world.store.asked(), (2, 1), "given back under its own name, tried under another");
}

/// All holds of a process are judged and renewed when the machine goes on.
#[tokio::test(start_paused = true)]
async fn h87_all_holds_are_renewed_at_once() {
    let world = World::new();
    let mut guards = Vec::new();
    for n in 0..100 {
        guards.push(world.locks.mutex(format!("k{n}")).ttl(TTL).acquire().await.unwrap());
    }
    world.io.sleep(SEC).await;
    world.clock.pause_machine(60 * SEC);
    world.settle().await;
    assert_eq!(renewals(&world), 100);
    assert!(guards.iter().all(|guard| guard.ensure_held().is_ok()));
}

/// A multi-lock has the first of two keys when its machine is paused. Meanwhile somebody else holds that
/// key, and the second one is released as the machine goes on.
async fn paused_with_one_of_two(
    world: &World,
    limit: Option<Duration>,
) -> Result<MultiGuard, Error> {
    let (_, other) = world.another();
    let second = other.mutex("b").acquire().await.unwrap();
    let multi = world.locks.clone().ttl(TTL).multi(["a", "b"]);
    let mut waiter = Box::pin(async move {
        match limit {
            None => multi.acquire().await,
            Some(limit) => multi.acquire_within(limit).await,
        }
    });
    assert!(world.io.within(SEC, &mut waiter).await.is_none());
    // The first one to hear of the pause must not be the store.
    world.store.plan(|asked| match asked {
        Asked::Renew => Fault::DelayRequest(200 * MS),
        _ => Fault::None,
    });
    world.clock.pause_machine(PAUSE);
    other.force_release("a").await.unwrap();
    let theirs = other.mutex("a").acquire().await.unwrap();
    let token = theirs.token();
    theirs.release().await.unwrap();
    second.release().await.unwrap();
    let all = waiter.await?;
    assert_eq!(all.state(), HoldState::Held);
    assert!(all.tokens().all(|(key, own)| key != "a" || own > token), "{all:?}, {token}");
    Ok(all)
}

#[tokio::test(start_paused = true)]
async fn h87_several_locks_are_handed_out_when_none_is_in_doubt() {
    let world = World::new();
    let start = world.io.now();
    let all = paused_with_one_of_two(&world, None).await.unwrap();
    assert!(world.io.now().since(start) < 2 * SEC, "as soon as the store has said so");
    all.release().await.unwrap();
}

/// The store confirms what is in doubt, and nobody waits for longer than its answer takes.
#[tokio::test(start_paused = true)]
async fn h87_several_locks_are_handed_out_as_soon_as_the_doubt_is_settled() {
    let world = World::new();
    let (_, other) = world.another();
    let second = other.mutex("b").acquire().await.unwrap();
    let multi = world.locks.clone().ttl(TTL).multi(["a", "b"]);
    let mut waiter = Box::pin(multi.acquire());
    assert!(world.io.within(SEC, &mut waiter).await.is_none());
    world.store.plan(|asked| match asked {
        Asked::Renew => Fault::DelayRequest(50 * MS),
        _ => Fault::None,
    });
    // Only the wall clock was set: the lock is still had.
    world.clock.pause_machine(PAUSE);
    second.release().await.unwrap();
    let start = world.io.now();
    waiter.await.unwrap().release().await.unwrap();
    assert!(world.io.now().since(start) < 100 * MS, "{:?}", world.io.now().since(start));
}

#[tokio::test(start_paused = true)]
async fn h87_several_locks_of_which_one_is_in_doubt_end_in_time() {
    let world = World::new();
    let start = world.io.now();
    let error = paused_with_one_of_two(&world, Some(SEC + 100 * MS)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(error.to_string().matches("timed out after 1.1s").count(), 1, "{error}");
    assert!(error.to_string().contains("`a`") || error.to_string().contains("\"a\""), "{error}");
    assert!(world.io.now().since(start) < SEC + 400 * MS);
}

/// The answer for one key comes at once, that for the other one after the pause.
#[tokio::test(start_paused = true)]
async fn h87_a_try_of_several_takes_none_that_is_lost_meanwhile() {
    let world = World::new();
    let (_, other) = world.another();
    let mut tries = 0;
    world.store.plan(move |asked| match asked {
        Asked::Try => {
            tries += 1;
            if tries == 2 { Fault::DelayRequest(100 * MS) } else { Fault::None }
        }
        _ => Fault::None,
    });
    let multi = world.locks.clone().ttl(TTL).multi(["a", "b"]);
    let pause = async {
        world.io.sleep(50 * MS).await;
        world.clock.pause_machine(10 * SEC);
        other.force_release("a").await.unwrap();
        other.force_release("b").await.unwrap();
        other.mutex("a").acquire().await.unwrap()
    };
    let (taken, theirs) = tokio::join!(multi.try_acquire(), pause);
    assert!(taken.unwrap().is_none());
    theirs.release().await.unwrap();
}
