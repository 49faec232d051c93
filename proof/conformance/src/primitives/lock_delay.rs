//! A lock delay: the key stays closed for a while after a hold that ended without a release.

use std::time::Duration;

use latchwork::once::{Begun, Skipped};
use latchwork::{HoldState, Period};
use latchwork_store::{ErrorKind, LostReason, Mode};

use crate::case::{Case, case};
use crate::stage::{NAME, Stage};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_lost_hold_keeps_the_key_closed_for_the_delay),
        case!(a_lost_hold_is_named_while_its_delay_lasts, |e| e.linger),
        case!(a_dead_holder_keeps_the_key_closed_for_ttl_and_delay),
        case!(a_release_opens_the_key_at_once),
        case!(a_granted_waiter_has_its_whole_ttl),
        case!(an_unsupported_lock_delay_is_refused),
    ]
}

/// What is given up at its longest hold is closed for the delay, and then open.
async fn a_lost_hold_keeps_the_key_closed_for_the_delay(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let delay = stage.short();
    let mutex = a.locks.mutex(NAME).max_hold(stage.short()).lock_delay(delay);
    let guard = mutex.acquire().await.unwrap();
    let lost = guard.lost().await;
    assert_eq!(lost.reason, LostReason::MaxHold);
    let next = b.locks.mutex(NAME).acquire().await.unwrap();
    let took = stage.now().since(lost.at);
    assert!(took >= delay, "open after {took:?} of {delay:?}");
    let most = delay + stage.lateness(lost.at) + b.locks.capabilities().default_ttl / 2;
    assert!(took <= most, "open after {took:?} of {delay:?}");
    next.release().await.unwrap();
    drop(guard);
}

/// The one that lost it is named as the holder, not as one that is done: a task that it was at is not closed.
async fn a_lost_hold_is_named_while_its_delay_lasts(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let every = Period::parse("100y", None).unwrap();
    let ours = a.locks.once(NAME, every.clone()).holder("web-2");
    let ours = ours.max_hold(stage.short()).lock_delay(stage.short() * 4);
    let Begun::Run(run) = ours.try_begin().await.unwrap() else { panic!("the task is open") };
    assert_eq!(run.lost().await.reason, LostReason::MaxHold);
    // Whatever the loss sends to the store has landed by then.
    stage.sleep(stage.short()).await;
    let seen = b.locks.inspect(NAME).await.unwrap();
    let [holder] = &seen.holders[..] else { panic!("one has held it: {seen:?}") };
    assert_eq!(&*holder.holder.text, "web-2");
    assert_eq!((seen.linger, seen.closed_by), (None, None));
    let told = b.locks.once(NAME, every).holder("web-3").try_begin().await.unwrap();
    let Begun::Skipped(Skipped::Running { holder }) = told else { panic!("{told:?}") };
    assert_eq!(holder.as_deref(), Some("web-2"));
    drop(run);
}

/// Nobody renews the claim of a dead process. What it may have counted on is over by the delay earlier.
async fn a_dead_holder_keeps_the_key_closed_for_ttl_and_delay(stage: Stage) {
    let (dead, b) = (stage.client().await, stage.peer().await);
    let claim = stage.short_claim(Mode::Exclusive);
    let delay = stage.short();
    let claim = claim.with(|it| {
        it.holder.lock_delay = Some(delay);
        it.ttl += it.holder.room_for_delay();
    });
    let start = stage.now();
    let grant = stage.granted(&dead, &claim, "the key is free").await;
    assert!(grant.ttl >= stage.short() + delay, "{:?}", grant.ttl);
    b.locks.mutex(NAME).acquire().await.unwrap().release().await.unwrap();
    let took = stage.now().since(start);
    assert!(took >= grant.ttl, "followed after {took:?} of {:?}", grant.ttl);
}

/// The holder is done: nothing is under way. The ttl is the one that was asked for.
async fn a_release_opens_the_key_at_once(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let plain = a.locks.mutex(NAME).acquire().await.unwrap();
    let ttl = plain.ttl();
    plain.release().await.unwrap();
    let mutex = a.locks.mutex(NAME).lock_delay(stage.short());
    let guard = mutex.acquire().await.unwrap();
    assert!(guard.ttl() <= ttl + Duration::from_secs(1), "{:?} of {ttl:?}", guard.ttl());
    assert!(guard.remaining() <= guard.ttl(), "{:?} of {ttl:?}", guard.remaining());
    guard.release().await.unwrap();
    // Of several stores that vote, one may hear of it a little later.
    drop(b.locks.mutex(NAME).acquire_within(stage.short() / 2).await.unwrap());
}

/// Also where the store hands the key on by itself, and for a short time at first.
async fn a_granted_waiter_has_its_whole_ttl(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let first = a.locks.mutex(NAME).acquire().await.unwrap();
    let mutex = b.locks.mutex(NAME).lock_delay(stage.short() * 2);
    let (second, released) = tokio::join!(mutex.acquire(), async {
        stage.settle().await;
        first.release().await
    });
    released.unwrap();
    let second = second.unwrap();
    assert_eq!(second.state(), HoldState::Held);
    assert!(second.remaining() >= second.ttl() / 3, "{:?}", second.remaining());
    stage.sleep(stage.short()).await;
    second.ensure_held().unwrap();
    second.release().await.unwrap();
}

/// A delay is never shortened in silence.
async fn an_unsupported_lock_delay_is_refused(stage: Stage) {
    let a = stage.peer().await;
    let most = *a.locks.capabilities().ttl.end();
    let error = a.locks.mutex(NAME).lock_delay(most).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("lock_delay"), "{error}");
}
