//! What a holder is told, and when.

use std::sync::atomic::Ordering;

use latchwork::fence::Fence;
use latchwork::once::Begun;
use latchwork::{Event, Guard, HoldState, LockManager, Observer, Owner, Period};
use latchwork_store::*;

use crate::engine::support::*;

fn reason(guard: &Guard) -> Option<LostReason> {
    match guard.state() {
        HoldState::Lost(lost) => Some(lost.reason),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn h01_the_first_check_after_a_pause_answers_lost() {
    let world = World::new();
    let (_, other) = world.another();
    let fence = Fence::new();
    let paused = world.locks.mutex("k").ttl(10 * SEC).acquire().await.unwrap();
    fence.check_write(paused.ensure_held().unwrap()).unwrap();
    // The process stands still between its check and its write; no timer of it fires.
    world.clock.suspend(11 * SEC);
    let next = other.mutex("k").acquire_within(SEC).await.unwrap();
    fence.check_write(next.token()).unwrap();
    assert!(matches!(paused.ensure_held(), Err(NotHeld::Lost(_))));
    assert!(next.token() > paused.token());
    assert!(fence.check_write(paused.token()).is_err());
}

#[tokio::test(start_paused = true)]
async fn h02_validity_counts_from_before_the_request() {
    let world = World::new();
    let sent_at = world.io.now();
    world.store.plan(|asked| match asked {
        Asked::Try => Fault::DelayAnswer(1500 * MS),
        _ => Fault::None,
    });
    let guard = world.locks.mutex("k").ttl(10 * SEC).acquire().await.unwrap();
    assert!(world.io.now() >= sent_at.plus(1500 * MS));
    assert_eq!(guard.valid_until(), sent_at.plus(10 * SEC - 102 * MS));
}

#[tokio::test(start_paused = true)]
async fn h02_a_renewal_counts_from_before_its_request() {
    let world = World::new();
    let guard = world.locks.mutex("k").ttl(9 * SEC).acquire().await.unwrap();
    let start = world.io.now();
    world.store.plan(|_| Fault::DelayAnswer(SEC));
    world.io.sleep(4500 * MS).await;
    assert_eq!(guard.valid_until(), start.plus(3 * SEC + 9 * SEC - 92 * MS));
}

#[tokio::test(start_paused = true)]
async fn h03_a_grant_older_than_half_its_ttl_is_given_back() {
    let world = World::new();
    let mut slow = true;
    world.store.plan(move |asked| match asked {
        Asked::Try if std::mem::take(&mut slow) => Fault::DelayAnswer(4950 * MS),
        _ => Fault::None,
    });
    let locks = world.locks.clone().ttl(10 * SEC).op_timeout(5 * SEC);
    let guard = locks.mutex("k").acquire().await.unwrap();
    assert_eq!(world.store.asked(), (2, 1), "given back under its own name, tried under another");
    assert!(guard.remaining() >= 5 * SEC);
    guard.release().await.unwrap();
    // A single try reports it.
    world.store.plan(|asked| match asked {
        Asked::Try => Fault::DelayAnswer(4950 * MS),
        _ => Fault::None,
    });
    let error = locks.mutex("k").try_acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_applied()), (ErrorKind::Unreachable, false));
    assert_eq!(error.next_step(), Some("use a longer ttl, or check the store and the network"));
    world.io.sleep(SEC).await;
    assert!(world.is_empty().await);
}

#[tokio::test(start_paused = true)]
async fn h04_a_jump_of_the_clock_is_seen_without_any_timer() {
    let world = World::new();
    let guard = world.locks.mutex("k").ttl(10 * SEC).acquire().await.unwrap();
    assert_eq!(guard.state(), HoldState::Held);
    world.clock.suspend(60 * SEC);
    assert_eq!(reason(&guard), Some(LostReason::Expired), "before any task ran");
    assert_eq!(guard.remaining(), std::time::Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn h05_a_paused_machine_makes_guards_suspect() {
    let world = World::new();
    let guard = world.locks.mutex("k").acquire().await.unwrap();
    world.clock.pause_machine(60 * SEC);
    assert_eq!(guard.ensure_held(), Err(NotHeld::Suspect));
    assert_eq!(guard.ensure_held(), Err(NotHeld::Suspect), "doubt does not pass by itself");
    world.settle().await;
    assert_eq!(guard.ensure_held(), Ok(guard.token()), "the store has confirmed the hold");
    assert_eq!(world.store.renewals.load(Ordering::SeqCst), 1, "asked once, not once per look");
}

#[tokio::test(start_paused = true)]
async fn h05_the_watchdog_notices_a_pause() {
    let world = World::new();
    let guard = world.locks.mutex("k").ttl(9 * SEC).acquire().await.unwrap();
    world.clock.pause_machine(60 * SEC);
    // Meanwhile the store gave the key away.
    world.locks.force_release("k").await.unwrap();
    assert_eq!(guard.lost().await.reason, LostReason::Taken);
}

#[tokio::test(start_paused = true)]
async fn h06_steps_of_the_wall_clock_change_no_validity() {
    let world = World::new();
    let guard = world.locks.mutex("k").acquire().await.unwrap();
    let until = guard.valid_until();
    world.clock.set_wall_back(3600 * SEC);
    assert_eq!(guard.state(), HoldState::Held);
    assert_eq!(guard.valid_until(), until);
    world.clock.pause_machine(7200 * SEC);
    // Such a step looks like a pause of the machine: the store is asked, and confirms.
    assert_eq!(guard.state(), HoldState::Suspect);
    world.settle().await;
    assert_eq!(guard.state(), HoldState::Held);
    assert_eq!(guard.valid_until(), until, "counted from that renewal, in the same moment");
}

#[tokio::test(start_paused = true)]
async fn h08_renewals_that_fail_now_and_then_lose_nothing() {
    let world = World::new();
    let guard = world.locks.mutex("k").ttl(9 * SEC).acquire().await.unwrap();
    let mut n = 0;
    world.store.plan(move |asked| {
        n += u32::from(asked == Asked::Renew);
        if asked == Asked::Renew && n % 2 == 1 { Fault::LoseRequest } else { Fault::None }
    });
    world.io.sleep(45 * SEC).await;
    assert_eq!(guard.ensure_held(), Ok(guard.token()));
    assert!(world.store.renewals.load(Ordering::SeqCst) > 20);
}

#[tokio::test(start_paused = true)]
async fn h09_a_forced_release_is_reported_within_one_renewal() {
    let world = World::new();
    let guard = world.locks.mutex("k").ttl(9 * SEC).acquire().await.unwrap();
    let (_, other) = world.another();
    let start = world.io.now();
    let released = other.force_release("k").await.unwrap();
    assert_eq!(released.evicted.len(), 1);
    assert!(released.token.unwrap() > guard.token(), "the evicted holder is fenced");
    let lost = guard.lost().await;
    assert_eq!(lost.reason, LostReason::Taken);
    assert!(lost.at.since(start) <= 3 * SEC);
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
}

/// Guards of every kind; `?` is enough to stop at it.
#[tokio::test(start_paused = true)]
async fn h115_a_release_after_a_loss_is_an_error() {
    let world = World::new();
    let locks = world.locks.clone().ttl(9 * SEC);
    let me = Owner::named("me");
    let guard = locks.mutex("mutex").acquire().await.unwrap();
    let token = guard.token();
    let reentrant = locks.reentrant("reentrant");
    let (outer, inner) =
        (reentrant.acquire(&me).await.unwrap(), reentrant.acquire(&me).await.unwrap());
    let leader = locks.election("election").campaign().await.unwrap();
    let several = locks.multi(["one", "several"]).acquire().await.unwrap();
    let once = locks.once("once", Period::parse("1h", None).unwrap());
    let Begun::Run(run) = once.try_begin().await.unwrap() else { panic!("it is open") };
    let failing = locks.once("failing", Period::parse("1h", None).unwrap());
    let Begun::Run(fails) = failing.try_begin().await.unwrap() else { panic!("it is open") };
    let late = locks.mutex("late").acquire().await.unwrap();
    let (_, other) = world.another();
    for name in ["mutex", "reentrant", "election", "several", "once", "failing"] {
        other.force_release(name).await.unwrap();
    }
    world.io.sleep(5 * SEC).await;
    // This one is not known to be lost before its release.
    other.force_release("late").await.unwrap();
    let error = guard.release().await.unwrap_err();
    let told = error.to_string();
    for part in [
        "\"mutex\"",
        "mem:",
        "before it was released",
        "check what was written under token ",
        &format!("token {token}"),
    ] {
        assert!(told.contains(part), "{told}");
    }
    let lost = error.lost().unwrap();
    assert!(lost.reason == LostReason::Taken && lost.at < world.io.now());
    let others = [
        inner.release().await,
        outer.release().await,
        leader.resign().await,
        several.release().await,
        run.succeed().await,
        fails.fail().await,
        late.release().await,
    ];
    for told in others {
        assert_eq!(told.unwrap_err().kind(), ErrorKind::Lost);
    }
}

/// A store that does not answer hides no overlap.
#[tokio::test(start_paused = true)]
async fn h115_an_overlap_of_one_of_several_comes_first() {
    let world = World::new();
    let several = world.locks.multi(["a", "b"]).acquire().await.unwrap();
    let (_, other) = world.another();
    other.force_release("b").await.unwrap();
    several.guards()[1].lost().await;
    world.store.plan(|asked| match asked {
        Asked::Release => Fault::LoseRequest,
        _ => Fault::None,
    });
    assert_eq!(several.release().await.unwrap_err().kind(), ErrorKind::Lost);
}

/// A store that tells of an end by itself makes the loss known at once; a word too much does no harm.
#[tokio::test(start_paused = true)]
async fn h09_a_notice_of_the_store_triggers_a_renewal() {
    let world = World::new();
    let guard = world.locks.mutex("k").ttl(9 * SEC).acquire().await.unwrap();
    let id = world.locks.inspect("k").await.unwrap().holders[0].id.unwrap();
    let (start, renewals) = (world.io.now(), || world.store.renewals.load(Ordering::SeqCst));
    world.store.doubts.raise(id);
    world.store.doubts.raise(ClaimId::random());
    world.settle().await;
    assert_eq!((guard.ensure_held(), renewals()), (Ok(guard.token()), 1));
    // The answer of a renewal that was under way when it was told settles nothing.
    world.store.plan(|_| Fault::DelayAnswer(500 * MS));
    world.store.doubts.raise(id);
    world.io.sleep(100 * MS).await;
    assert_eq!(renewals(), 2);
    world.another().1.force_release("k").await.unwrap();
    world.store.plan(|_| Fault::None);
    world.store.doubts.raise(id);
    assert_eq!(guard.lost().await.reason, LostReason::Taken);
    assert!(world.io.now().since(start) < SEC, "not at the next renewal");
}

/// Two managers share one store: each hears what it says of its own claims.
#[tokio::test(start_paused = true)]
async fn h96_two_managers_on_one_store_each_hear_their_doubts() {
    let world = World::new();
    let other = LockManager::on_io(world.store.clone(), world.io.clone());
    let renewals = || world.store.renewals.load(Ordering::SeqCst);
    let first = world.locks.mutex("first").ttl(9 * SEC).acquire().await.unwrap();
    let second = other.mutex("second").ttl(9 * SEC).acquire().await.unwrap();
    let id = async |name: &str| world.locks.inspect(name).await.unwrap().holders[0].id.unwrap();
    for (n, name) in ["second", "first", "second", "first"].into_iter().enumerate() {
        world.store.doubts.raise(id(name).await);
        world.settle().await;
        assert_eq!(renewals(), n as u32 + 1, "the word on {name} was dropped");
    }
    // Both at once.
    let both = [id("first").await, id("second").await];
    both.into_iter().for_each(|id| world.store.doubts.raise(id));
    world.settle().await;
    assert_eq!(renewals(), 6);
    drop((first, second));
}

#[tokio::test(start_paused = true)]
async fn h10_a_failed_renewal_never_releases() {
    let world = World::new();
    let guard = world.locks.mutex("k").ttl(9 * SEC).acquire().await.unwrap();
    world.store.plan(|asked| if asked == Asked::Renew { Fault::LoseRequest } else { Fault::None });
    world.io.sleep(8500 * MS).await;
    assert_eq!(guard.state(), HoldState::Held);
    assert_eq!(world.store.releases.load(Ordering::SeqCst), 0);
    world.store.behave();
    world.io.sleep(60 * SEC).await;
    assert_eq!(guard.state(), HoldState::Held, "an error leaves the lease as it was");
}

#[tokio::test(start_paused = true)]
async fn h11_a_forgotten_guard_ends_with_max_hold() {
    let world = World::new();
    let (_, other) = world.another();
    let guard = world.locks.mutex("k").ttl(9 * SEC).max_hold(20 * SEC).acquire().await.unwrap();
    let start = world.io.now();
    std::mem::forget(guard);
    other.mutex("k").acquire().await.unwrap().release().await.unwrap();
    let waited = world.io.now().since(start);
    assert!(waited >= 20 * SEC && waited < 21 * SEC, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn h11_renewing_stops_with_the_drop() {
    let world = World::new();
    let guard = world.locks.mutex("k").ttl(9 * SEC).acquire().await.unwrap();
    world.store.plan(|asked| if asked == Asked::Release { Fault::Hang } else { Fault::None });
    drop(guard);
    world.io.sleep(30 * SEC).await;
    assert_eq!(world.store.renewals.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn h12_a_lost_claim_is_released_at_the_store() {
    // The store keeps the claim ten times longer than the holder may believe in it, as one does
    // whose session lives on.
    let world = World::with_overtime(10);
    let (_, other) = world.another();
    let guard = world.locks.mutex("k").ttl(9 * SEC).acquire().await.unwrap();
    let start = world.io.now();
    world.store.plan(|asked| if asked == Asked::Renew { Fault::Hang } else { Fault::None });
    assert_eq!(guard.lost().await.reason, LostReason::Expired);
    drop(other.mutex("k").acquire_within(2 * SEC).await.expect("freed by the reaper"));
    assert!(world.io.now().since(start) < 10 * SEC);
}

#[tokio::test(start_paused = true)]
async fn h13_a_late_renewal_revives_nothing() {
    let world = World::with_overtime(10);
    let locks = world.locks.clone().ttl(9 * SEC).op_timeout(4 * SEC).renew_every(4500 * MS);
    let guard = locks.mutex("k").acquire().await.unwrap();
    let start = world.io.now();
    // Renewals sent at 4.5 s and later are applied, and answered when it is too late.
    let io = world.io.clone();
    world.store.plan(move |asked| match asked {
        Asked::Renew if io.now().since(start) >= 6 * SEC => Fault::DelayAnswer(3900 * MS),
        Asked::Renew => Fault::LoseRequest,
        Asked::Release => Fault::Hang,
        Asked::Try => Fault::None,
    });
    let lost = guard.lost().await;
    assert_eq!(lost.reason, LostReason::Expired);
    assert_eq!(lost.at.since(start), 9 * SEC - 92 * MS);
    world.io.sleep(5 * SEC).await;
    assert_eq!(reason(&guard), Some(LostReason::Expired), "lost is final");
}

#[tokio::test(start_paused = true)]
async fn a_silent_store_loses_the_lock_at_the_validity_end() {
    let world = World::new();
    let guard = world.locks.mutex("k").ttl(9 * SEC).acquire().await.unwrap();
    let until = guard.valid_until();
    world.store.plan(|_| Fault::Hang);
    let work = guard.run(std::future::pending::<()>()).await;
    let lost = work.unwrap_err();
    assert_eq!((lost.reason, lost.at), (LostReason::Expired, until));
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_renewed_for_as_long_as_its_guard_lives() {
    let world = World::new();
    let (_, other) = world.another();
    let guard = world.locks.mutex("k").ttl(9 * SEC).acquire().await.unwrap();
    for _ in 0..100 {
        world.io.sleep(7 * SEC).await;
        assert_eq!(guard.ensure_held(), Ok(guard.token()));
        assert!(other.mutex("k").try_acquire().await.unwrap().is_none());
    }
    let renewals = world.store.renewals.load(Ordering::SeqCst);
    assert!((230..=236).contains(&renewals), "every third of the ttl: {renewals}");
}

#[tokio::test(start_paused = true)]
async fn close_notifies_holders_and_waiters() {
    let world = World::new();
    let (_, other) = world.another();
    let theirs = other.mutex("theirs").acquire().await.unwrap();
    let ours = world.locks.mutex("ours").acquire().await.unwrap();
    let start = world.io.now();
    let (waiting, behind) = (world.locks.mutex("theirs"), world.locks.mutex("ours"));
    let (at_the_store, in_line, ()) = tokio::join!(waiting.acquire(), behind.acquire(), async {
        world.settle().await;
        world.locks.close().await;
    });
    assert_eq!(at_the_store.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(in_line.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(reason(&ours), Some(LostReason::SessionEnded));
    // This process did it by itself: there was no other holder.
    let released = ours.release().await.unwrap_err();
    assert_eq!(released.next_step(), Some("release all guards before you close the manager"));
    let later = waiting.try_acquire().await.unwrap_err();
    assert_eq!((later.kind(), later.next_step()), (ErrorKind::Closed, Some("connect again")));
    drop(other.mutex("ours").try_acquire().await.unwrap().expect("given back by close"));
    assert_eq!(world.io.now(), start, "nothing had to be waited for");
    drop(theirs);
}

#[tokio::test(start_paused = true)]
async fn h05_a_machine_paused_while_a_request_is_under_way_is_noticed() {
    let world = World::new();
    world.store.plan(|_| Fault::DelayAnswer(100 * MS));
    let mutex = world.locks.mutex("k").ttl(9 * SEC);
    let (guard, ()) = tokio::join!(mutex.acquire(), async {
        world.io.sleep(50 * MS).await;
        world.clock.pause_machine(4 * SEC);
    });
    let guard = guard.unwrap();
    assert_eq!(guard.state(), HoldState::Suspect, "the ttl ran while the answer was on its way");
    world.io.sleep(SEC).await;
    assert_eq!(guard.state(), HoldState::Held, "the store has confirmed the hold since");
    // The next renewal goes out a third of the ttl after the one that settled the doubt.
    world.io.sleep(2_050 * MS).await;
    let renewals = world.store.renewals.load(Ordering::SeqCst);
    world.clock.pause_machine(60 * SEC);
    world.io.sleep(100 * MS).await;
    assert_eq!(guard.state(), HoldState::Suspect, "it was sent before the pause");
    assert_eq!(world.store.renewals.load(Ordering::SeqCst), renewals + 1, "asked once more");
}

struct Clumsy;

impl Observer for Clumsy {
    fn event(&self, event: &Event<'_>) {
        std::panic::panic_any(format!("on purpose: {event:?}"));
    }
}

#[tokio::test(start_paused = true)]
async fn an_observer_that_panics_changes_nothing() {
    let world = World::new();
    let clumsy = world.locks.clone().observer(std::sync::Arc::new(Clumsy)).ttl(9 * SEC);
    let good = world.locks.mutex("good").ttl(9 * SEC).acquire().await.unwrap();
    let watched = clumsy.mutex("watched").acquire().await.unwrap();
    let short = clumsy.mutex("short").max_hold(SEC).acquire().await.unwrap();
    world.io.sleep(60 * SEC).await;
    assert_eq!(good.state(), HoldState::Held);
    assert_eq!(watched.state(), HoldState::Held);
    assert_eq!(reason(&short), Some(LostReason::MaxHold));
    drop((good, watched, short));
    world.settle().await;
    assert!(world.is_empty().await);
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_comes_after_the_close_is_given_back() {
    let world = World::new();
    world.store.plan(|asked| match asked {
        Asked::Try => Fault::DelayAnswer(100 * MS),
        _ => Fault::None,
    });
    let mutex = world.locks.mutex("k");
    let (acquired, ()) = tokio::join!(mutex.acquire(), async {
        world.io.sleep(50 * MS).await;
        world.locks.close().await;
    });
    assert_eq!(acquired.unwrap_err().kind(), ErrorKind::Closed);
    world.settle().await;
    assert!(world.is_empty().await);
}

/// The holder's lease is over, and only its successor's place in the line says what the key is.
#[tokio::test(start_paused = true)]
async fn force_opens_a_queue_of_readers_without_holder() {
    let world = World::new();
    let (_, other) = world.another();
    let held = world.locks.rwlock("k").write().ttl(10 * SEC).acquire().await.unwrap();
    let waiting = other.rwlock("k").read().ttl(60 * SEC);
    let mut waiting = Box::pin(waiting.acquire());
    assert!(world.io.within(SEC, &mut waiting).await.is_none());
    world.clock.suspend(10 * SEC);
    let released = world.locks.force_release("k").await.unwrap();
    assert!(released.evicted.is_empty(), "{released:?}");
    drop(held);
}
