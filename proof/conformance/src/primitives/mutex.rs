//! A mutex: one holder at a time.

use std::time::Duration;

use latchwork_store::{ErrorKind, Mode};

use crate::case::{Case, case};
use crate::stage::{NAME, Stage};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(one_holds_and_the_next_follows),
        case!(a_try_that_is_blocked_leaves_nothing),
        case!(a_wait_has_an_end_that_names_the_holder),
        case!(a_holder_that_dies_is_followed_after_its_ttl),
        case!(a_forced_release_evicts_the_holder_and_moves_the_token_on),
        case!(another_kind_of_lock_is_a_mismatch, |e| e.shared),
    ]
}

/// A process waits until the other one releases, and has a larger token then.
async fn one_holds_and_the_next_follows(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let first = a.locks.mutex(NAME).acquire().await.unwrap();
    let first_token = first.token();
    let mutex = b.locks.mutex(NAME);
    let (second, released) = tokio::join!(mutex.acquire(), async {
        stage.settle().await;
        first.release().await
    });
    released.unwrap();
    let second = second.unwrap();
    assert!(second.token() > first_token, "{} after {first_token}", second.token());
    second.ensure_held().unwrap();
}

/// Who does not wait is told at once and is not seen afterwards.
async fn a_try_that_is_blocked_leaves_nothing(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let held = a.locks.mutex(NAME).acquire().await.unwrap();
    assert!(b.locks.mutex(NAME).try_acquire().await.unwrap().is_none());
    let key = held.key().clone();
    stage.soon(&a.client, &key, "the try has left", |seen| seen.waiters.is_empty()).await;
    held.release().await.unwrap();
    stage.soon_free(&b.client, &key, "nobody is left").await;
}

/// A bounded wait ends in time, says who holds the lock, and leaves nothing.
async fn a_wait_has_an_end_that_names_the_holder(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let held = a.locks.mutex(NAME).holder("the long report").acquire().await.unwrap();
    // The first try must be answered in that time: it is the one that names the holder.
    let limit = Duration::from_millis(300).max(2 * stage.lateness(stage.now()));
    let start = stage.now();
    let error = b.locks.mutex(NAME).acquire_within(limit).await.unwrap_err();
    let took = stage.now().since(start);
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("the long report"), "{error}");
    assert!(took >= limit, "gave up after {took:?} of {limit:?}");
    let most = limit + stage.lateness(start);
    assert!(took <= most, "gave up after {took:?} of {limit:?}");
    held.release().await.unwrap();
    let key = b.locks.mutex(NAME).key().unwrap().clone();
    stage.soon_free(&b.client, &key, "nobody is left").await;
}

/// What a dead process held is free when its ttl is over.
async fn a_holder_that_dies_is_followed_after_its_ttl(stage: Stage) {
    let (dead, b) = (stage.client().await, stage.peer().await);
    let claim = stage.short_claim(Mode::Exclusive);
    let start = stage.now();
    let grant = stage.granted(&dead, &claim, "the key is free").await;
    let guard = b.locks.mutex(NAME).acquire().await.unwrap();
    let took = stage.now().since(start);
    assert!(took >= grant.ttl, "followed after {took:?} of {:?}", grant.ttl);
    assert!(guard.token().get() > latchwork_store::FencingToken::from_grant(grant.token).get());
}

/// The evicted holder is told at its next renewal, and fenced at once.
async fn a_forced_release_evicts_the_holder_and_moves_the_token_on(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let held = a.brief.mutex(NAME).ttl(stage.short()).acquire().await.unwrap();
    let freed = b.locks.force_release(NAME).await.unwrap();
    assert_eq!(freed.evicted.len(), 1, "{freed:?}");
    assert!(freed.token.is_none_or(|token| token > held.token()), "{freed:?}");
    held.lost().await;
    held.ensure_held().unwrap_err();
    let next = b.locks.mutex(NAME).acquire().await.unwrap();
    assert!(next.token() > held.token());
}

/// A key in use as a mutex is no read-write lock, and the error says so.
async fn another_kind_of_lock_is_a_mismatch(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let _held = a.locks.mutex(NAME).acquire().await.unwrap();
    let error = b.locks.rwlock(NAME).read().try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
}
