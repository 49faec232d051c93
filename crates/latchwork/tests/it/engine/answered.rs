//! Releases that are asked for until the store answers.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use latchwork::once::{Begun, Skipped};
use latchwork::{Error, ErrorKind, Period};

use super::support::*;

/// The first so many releases have this fault.
fn first_releases(world: &World, mut count: u32, fault: Fault) {
    world.store.plan(move |asked| match asked {
        Asked::Release if count > 0 => {
            count -= 1;
            fault
        }
        _ => Fault::None,
    });
}

#[tokio::test(start_paused = true)]
async fn h216_a_release_is_asked_for_until_it_is_answered() {
    let world = World::new();
    let guard = world.locks.mutex("k").ttl(9 * SEC).acquire().await.unwrap();
    first_releases(&world, 3, Fault::LoseRequest);
    let failed = Mutex::new(Vec::new());
    let note = |error: &Error| failed.lock().unwrap().push(error.kind());
    guard.release_until_answered(note).await.unwrap();
    assert_eq!(*failed.lock().unwrap(), [ErrorKind::Unreachable; 3]);
    assert!(world.is_empty().await);
    // What was lost before is told, and asked for once.
    let guard = world.locks.mutex("k").ttl(9 * SEC).acquire().await.unwrap();
    world.another().1.force_release("k").await.unwrap();
    let asked = world.store.releases.load(Ordering::SeqCst);
    let lost = guard.release_until_answered(|_| ()).await.unwrap_err();
    assert!(lost.kind() == ErrorKind::Lost && lost.lost().is_some(), "{lost}");
    assert_eq!(world.store.releases.load(Ordering::SeqCst), asked + 1);
}

/// The first request has released it, and its answer was lost: the second one finds nothing.
#[tokio::test(start_paused = true)]
async fn h216_a_lost_answer_to_a_release_is_no_loss() {
    let world = World::new();
    let guard = world.locks.mutex("k").ttl(9 * SEC).acquire().await.unwrap();
    first_releases(&world, 1, Fault::LoseAnswer);
    // This store forgets a free key, so nobody knows whether it was lost before.
    let error = guard.release_until_answered(|_| ()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    // So it is where somebody has it since.
    let (_, other) = world.another();
    let guard = world.locks.mutex("k").ttl(9 * SEC).acquire().await.unwrap();
    first_releases(&world, 1, Fault::LoseAnswer);
    let next = other.mutex("k");
    let (error, next) = tokio::join!(guard.release_until_answered(|_| ()), next.acquire());
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Unreachable);
    drop(next.unwrap());
}

#[tokio::test(start_paused = true)]
async fn h216_an_unanswered_release_ends_with_the_lease() {
    let world = World::new();
    let several = world.locks.clone().ttl(9 * SEC).multi(["a", "b"]).acquire().await.unwrap();
    world.store.plan(|asked| if asked == Asked::Release { Fault::Hang } else { Fault::None });
    let start = world.io.now();
    let failed = Mutex::new(0);
    let error = several.release_until_answered(|_| *failed.lock().unwrap() += 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let took = world.io.now().since(start);
    assert!(took > 5 * SEC && took <= 12 * SEC, "{took:?}");
    assert!(*failed.lock().unwrap() > 4, "asked again and again");
    world.io.sleep(9 * SEC).await;
    assert!(world.is_empty().await, "and nothing more is asked");
}

/// The next waiter of the process asks the store by itself.
#[tokio::test(start_paused = true)]
async fn h216_an_unanswered_release_keeps_no_local_waiter() {
    let world = World::new();
    let guard = world.locks.mutex("k").ttl(9 * SEC).acquire().await.unwrap();
    let mutex = world.locks.mutex("k").ttl(9 * SEC);
    let start = world.io.now();
    let waiting = async {
        let next = mutex.acquire_within(60 * SEC).await.unwrap();
        (next, world.io.now().since(start))
    };
    let releasing = async {
        // Too late for a handover.
        world.io.sleep(SEC).await;
        first_releases(&world, u32::MAX, Fault::LoseAnswer);
        let _ = guard.release_until_answered(|_| ()).await;
        world.io.now().since(start)
    };
    let ((_next, waited), released) = tokio::join!(waiting, releasing);
    assert!(waited < 2 * SEC && released > 5 * SEC, "{waited:?} {released:?}");
}

#[tokio::test(start_paused = true)]
async fn h216_a_success_whose_answer_was_lost_is_a_success() {
    let world = World::new();
    let once = world.locks.once("task", Period::parse("1h", None).unwrap()).ttl(9 * SEC);
    let Begun::Run(run) = once.try_begin().await.unwrap() else { panic!("it is open") };
    first_releases(&world, 1, Fault::LoseAnswer);
    run.succeed_until_answered(|_| ()).await.expect("the key shows who closed it");
    let again = once.try_begin().await.unwrap();
    assert!(matches!(again, Begun::Skipped(Skipped::Done { .. })), "{again:?}");
    // One that never lands is none, and the task is open for the next.
    once.reset().await.unwrap();
    let Begun::Run(run) = once.try_begin().await.unwrap() else { panic!("it is open") };
    first_releases(&world, u32::MAX, Fault::LoseRequest);
    let error = run.succeed_until_answered(|_| ()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    world.store.behave();
    let again = once.begin_within(20 * SEC).await.unwrap();
    let Begun::Run(run) = again else { panic!("{again:?}") };
    run.fail_until_answered(|_| ()).await.unwrap();
}
