//! B12: a key used as two kinds of lock answers `Mismatch`, and so does another permit limit unless the
//! claim's policy says otherwise. A change of the limit ends no claim.

use latchwork_store::{
    Attempt, BackendErrorKind, Claim, Effect, Mode, Order, Released, Resize, Resized, Shape,
};

use crate::case::{Case, case};
use crate::harness::Client;
use crate::stage::Stage;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(two_kinds_on_one_key_do_not_match, |e| e.shared || e.permits),
        case!(two_limits_on_one_key_do_not_match, |e| e.permits),
        case!(a_free_key_takes_any_kind),
        case!(a_claim_is_judged_by_its_own_limit, |e| e.mixed_limits),
        case!(a_larger_limit_passes_no_waiter, |e| e.mixed_limits && e.fifo),
        case!(a_waiter_keeps_the_limit_that_it_came_with, |e| e.mixed_limits && e.fifo),
        case!(a_follower_is_judged_by_the_limit_of_the_key, |e| e.mixed_limits),
        case!(no_policy_matches_another_kind, |e| e.mixed_limits),
        case!(a_raised_limit_admits_those_who_wait, |e| e.resize),
        case!(a_lowered_limit_ends_no_claim, |e| e.resize),
        case!(a_waiter_keeps_the_changed_limit, |e| e.resize && e.fifo),
        case!(a_lowered_limit_reaches_every_waiter, |e| e.resize && e.fifo),
        case!(a_grant_that_was_not_told_outlasts_a_lowered_limit, |e| e.resize && e.fifo),
        case!(a_limit_below_what_a_waiter_takes_can_be_raised, |e| e.resize && e.fifo),
        case!(a_key_at_rest_has_no_limit_to_change, |e| e.resize),
    ]
}

fn modes(stage: &Stage) -> Vec<Mode> {
    let mut modes = stage.filling_modes();
    modes.retain(|mode| !matches!(mode, Mode::Permits { .. }));
    if stage.expected().permits {
        modes.extend([1, 2, 3].map(|of| Mode::Permits { take: 1, of }));
    }
    modes
}

async fn mismatch(stage: &Stage, held: Mode, wanted: Mode) {
    let (a, b) = (stage.client().await, stage.client().await);
    let (first, other) = (stage.claim(held), stage.claim(wanted));
    stage.granted(&a, &first, "the key is free").await;
    let error = match b.attempt(&other).await {
        Err(error) => error,
        Ok(answer) => panic!("{wanted:?} on a key held as {held:?}: {answer:?}"),
    };
    assert_eq!(error.kind, BackendErrorKind::Mismatch, "{wanted:?} on {held:?}: {error:?}");
    if error.effect == Effect::NotApplied {
        assert_eq!(b.release(&other).await, Released::NotHeld, "{wanted:?} on {held:?}");
    } else {
        b.release(&other).await;
    }
    let shape = Some(held.shape());
    let why = "a mismatch changes and leaves nothing";
    stage.soon(&b, &first.key, why, |shown| shown.shape == shape && shown.waiters.is_empty()).await;
    a.held(&first, "a mismatch does not touch it").await;
    a.released(&first, "it was held").await;
}

/// Every pair of different kinds: the one that came second is told, and leaves nothing.
async fn two_kinds_on_one_key_do_not_match(stage: Stage) {
    for held in modes(&stage) {
        for wanted in modes(&stage) {
            if held.shape() != wanted.shape() {
                mismatch(&stage, held, wanted).await;
            }
        }
    }
}

/// Two limits on one key would let in more than either: the second is told.
async fn two_limits_on_one_key_do_not_match(stage: Stage) {
    for (held, wanted) in [(2, 3), (3, 2), (1, 1_000_000)] {
        mismatch(
            &stage,
            Mode::Permits { take: 1, of: held },
            Mode::Permits { take: 1, of: wanted },
        )
        .await;
    }
}

/// A key that nobody holds or waits for has no kind yet.
async fn a_free_key_takes_any_kind(stage: Stage) {
    let a = stage.client().await;
    for _ in 0..2 {
        for mode in modes(&stage) {
            let claim = stage.claim(mode);
            stage.soon(&a, &claim.key, "it is free", |shown| shown.shape.is_none()).await;
            stage.granted(&a, &claim, "a free key has no kind").await;
            assert_eq!(a.show(&claim.key).await.shape, Some(mode.shape()));
            a.released(&claim, "it was held").await;
        }
    }
}

fn permits(take: u32, of: u32) -> Mode {
    Mode::Permits { take, of }
}

/// A claim whose limit is to count.
fn mine(claim: Claim) -> Claim {
    claim.with(|it| it.resize = Resize::ToMine)
}

fn followed(claim: Claim) -> Claim {
    claim.with(|it| it.resize = Resize::Follow)
}

async fn resize(client: &Client, stage: &Stage, of: u32) -> Resized {
    let claim = stage.passer(permits(1, of));
    client.backend.resize(&claim).await.expect("a change of the limit without fault")
}

/// Each side of a rolling deployment is admitted within its own limit, and no claim ends.
async fn a_claim_is_judged_by_its_own_limit(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let old = [(); 3].map(|()| mine(stage.claim(permits(1, 3))));
    for claim in &old {
        stage.granted(&a, claim, "3 of 3 are free").await;
    }
    a.blocked(&mine(stage.passer(permits(1, 3))), "none of 3 is free").await;
    let new = [(); 2].map(|()| mine(stage.claim(permits(1, 5))));
    for claim in &new {
        stage.granted(&b, claim, "2 of 5 are free").await;
    }
    b.blocked(&mine(stage.passer(permits(1, 5))), "none of 5 is free").await;
    a.blocked(&mine(stage.passer(permits(1, 3))), "5 are held, and 3 are allowed").await;
    for claim in &old {
        a.held(claim, "another limit ends no claim").await;
    }
    for claim in &old[..2] {
        a.released(claim, "it was held").await;
    }
    a.blocked(&mine(stage.passer(permits(1, 3))), "3 are held, and 3 are allowed").await;
    a.released(&old[2], "it was held").await;
    let back = mine(stage.claim(permits(1, 3)));
    stage.granted(&a, &back, "2 are held, and 3 are allowed").await;
    for claim in &new {
        b.held(claim, "another limit ends no claim").await;
        b.released(claim, "it was held").await;
    }
    a.held(&back, "it was granted").await;
}

/// H506: a claim with a larger limit does not go ahead of a waiter, which would be admitted beside it beyond
/// its own limit. The first in the queue gets in when nobody holds the key, whatever its limit.
async fn a_larger_limit_passes_no_waiter(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let held = mine(stage.claim(permits(1, 5)));
    stage.granted(&a, &held, "the key is free").await;
    let small = mine(stage.claim(permits(1, 1)));
    a.blocked(&small, "none of 1 is free").await;
    b.blocked(&mine(stage.passer(permits(3, 5))), "a waiter is ahead of it").await;
    let large = mine(stage.claim(permits(3, 5)));
    b.blocked(&large, "a waiter is ahead of it").await;
    a.released(&held, "it was held").await;
    stage.granted(&a, &small, "nobody holds the key").await;
    stage.granted(&b, &large, "4 of 5 are free").await;
    a.blocked(&mine(stage.passer(permits(1, 1))), "4 are held, and 1 is allowed").await;
    for (client, claim) in [(&a, &small), (&b, &large)] {
        client.held(claim, "it was granted").await;
        client.released(claim, "it was held").await;
    }
}

/// H509: a waiter that takes no other limit than its own was accepted. Another limit that the key gets while it
/// waits is no mismatch.
async fn a_waiter_keeps_the_limit_that_it_came_with(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let held = stage.claim(permits(3, 3));
    stage.granted(&a, &held, "the key is free").await;
    let large = mine(stage.claim(permits(3, 5)));
    b.blocked(&large, "2 of 5 are free").await;
    let never = stage.claim(permits(1, 3));
    b.blocked(&never, "none of 3 is free").await;
    a.released(&held, "it was held").await;
    stage.granted(&b, &large, "5 of 5 are free").await;
    for _ in 0..2 {
        b.blocked(&never, "none of 3 is free").await;
    }
    b.released(&large, "it was held").await;
    stage.granted(&b, &never, "3 of 3 are free").await;
    b.held(&never, "it was granted").await;
}

/// A follower brings no limit to a key in use.
async fn a_follower_is_judged_by_the_limit_of_the_key(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let first = stage.claim(permits(2, 2));
    stage.granted(&a, &first, "the key is free").await;
    b.blocked(&followed(stage.passer(permits(1, 9))), "none of 2 is free").await;
    a.released(&first, "it was held").await;
    let own = followed(stage.claim(permits(2, 3)));
    stage.granted(&b, &own, "a key at rest has no limit").await;
    let error = a.attempt(&stage.passer(permits(1, 2))).await.expect_err("3 is the limit now");
    assert_eq!(error.kind, BackendErrorKind::Mismatch, "{error:?}");
    let next = followed(stage.claim(permits(1, 1)));
    stage.granted(&a, &next, "1 of 3 is free").await;
    let shape = Some(Shape::Semaphore { of: 3 });
    stage.soon(&a, &next.key, "it follows", |shown| shown.shape == shape).await;
    a.blocked(&followed(stage.passer(permits(5, 5))), "no more than 3 are ever free").await;
}

/// A policy is about limits alone.
async fn no_policy_matches_another_kind(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    for resize in Resize::ALL {
        let mutex = stage.claim(Mode::Exclusive);
        stage.granted(&a, &mutex, "the key is free").await;
        let semaphore = stage.passer(permits(1, 2)).with(|it| it.resize = resize);
        let error = b.attempt(&semaphore).await.expect_err("another kind of lock");
        assert_eq!(error.kind, BackendErrorKind::Mismatch, "{resize:?}: {error:?}");
        b.release(&semaphore).await;
        if stage.expected().resize {
            let error = b.backend.resize(&semaphore).await.expect_err("another kind of lock");
            assert_eq!(error.kind, BackendErrorKind::Mismatch, "{error:?}");
        }
        a.held(&mutex, "a mismatch does not touch it").await;
        a.released(&mutex, "it was held").await;
        let held = stage.claim(permits(1, 2));
        stage.granted(&a, &held, "the key is free").await;
        let mutex = stage.passer(Mode::Exclusive);
        let error = b.attempt(&mutex).await.expect_err("another kind of lock");
        assert_eq!(error.kind, BackendErrorKind::Mismatch, "{error:?}");
        b.release(&mutex).await;
        a.released(&held, "it was held").await;
    }
}

/// The waiter is admitted by the change itself, not by a release.
async fn a_raised_limit_admits_those_who_wait(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let held = stage.claim(permits(3, 3));
    stage.granted(&a, &held, "the key is free").await;
    let waiters = [(); 2].map(|()| stage.claim(permits(1, 3)));
    let mut answers = Vec::new();
    for waiter in &waiters {
        answers.push(b.blocked(waiter, "none of 3 is free").await);
    }
    assert_eq!(resize(&a, &stage, 5).await, Resized::Yes { from: 3, to: 5, held: 3 });
    for (waiter, blocked) in waiters.iter().zip(answers) {
        if stage.expected().push {
            let woken = stage.now();
            let wait = b.backend.wait(waiter, &blocked);
            stage.within(stage.lateness(woken), wait).await.expect("it may come").unwrap();
        }
        stage.granted(&b, waiter, "2 of 5 are free").await;
    }
    let error = b.attempt(&stage.passer(permits(1, 3))).await.expect_err("5 is the limit now");
    assert_eq!(error.kind, BackendErrorKind::Mismatch, "{error:?}");
    a.blocked(&stage.passer(permits(1, 5)), "none of 5 is free").await;
    a.held(&held, "a change of the limit ends no claim").await;
}

/// Those who hold more than is allowed now go on; others wait for enough of them to leave.
async fn a_lowered_limit_ends_no_claim(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let held = [(); 5].map(|()| stage.claim(permits(1, 5)));
    for claim in &held {
        stage.granted(&a, claim, "5 of 5 are free").await;
    }
    assert_eq!(resize(&b, &stage, 3).await, Resized::Yes { from: 5, to: 3, held: 5 });
    assert_eq!(resize(&b, &stage, 3).await, Resized::Yes { from: 3, to: 3, held: 5 });
    for claim in &held {
        let (_, token) = a.held(claim, "a change of the limit ends no claim").await;
        let again = stage.granted(&a, claim, "it is held").await;
        assert_eq!(again.token, token, "the same grant");
    }
    for (left, claim) in held.iter().enumerate().take(3) {
        let why = format!("{} are held, and 3 are allowed", 5 - left);
        b.blocked(&stage.passer(permits(1, 3)), &why).await;
        a.released(claim, "it was held").await;
    }
    let next = stage.claim(permits(1, 3));
    stage.granted(&b, &next, "2 are held, and 3 are allowed").await;
    for claim in &held[3..] {
        a.held(claim, "a change of the limit ends no claim").await;
    }
    b.blocked(&stage.passer(permits(1, 3)), "3 are held, and 3 are allowed").await;
}

/// A waiter of the old limit goes on waiting by the new one: its try is no mismatch, and it is
/// admitted by the new limit also when nobody holds the key any more.
async fn a_waiter_keeps_the_changed_limit(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let held = stage.claim(permits(2, 2));
    stage.granted(&a, &held, "the key is free").await;
    let waiters = [1, 1, 1].map(|take| stage.claim(permits(take, 2)));
    for waiter in &waiters {
        b.blocked(waiter, "none of 2 is free").await;
    }
    assert_eq!(resize(&a, &stage, 1).await, Resized::Yes { from: 2, to: 1, held: 2 });
    for waiter in &waiters {
        b.blocked(waiter, "it waits by the new limit").await;
    }
    a.released(&held, "it was held").await;
    for (place, waiter) in waiters.iter().enumerate() {
        stage.granted(&b, waiter, "1 of 1 is free").await;
        for other in &waiters[place + 1..] {
            b.blocked(other, "none of 1 is free").await;
        }
        b.released(waiter, "it was held").await;
    }
}

/// Holders beyond the new limit are shown as holders, and waiters as waiters, until so many have left that
/// the new limit admits another one.
async fn a_lowered_limit_reaches_every_waiter(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let held = [(); 4].map(|()| stage.claim(permits(1, 4)));
    for claim in &held {
        stage.granted(&a, claim, "4 of 4 are free").await;
    }
    let waiters = [(); 3].map(|()| stage.claim(permits(1, 4)));
    for waiter in &waiters {
        b.blocked(waiter, "none of 4 is free").await;
    }
    let key = &held[0].key;
    assert_eq!(resize(&b, &stage, 2).await, Resized::Yes { from: 4, to: 2, held: 4 });
    for left in [4, 3, 2] {
        let shown = a.show(key).await;
        let limits = [&shown.holders, &shown.waiters]
            .map(|parties| parties.iter().all(|party| party.mode.limit() == Some(2)));
        assert_eq!((shown.holders.len(), shown.waiters.len(), limits), (left, 3, [true; 2]));
        for (place, waiter) in waiters.iter().enumerate() {
            b.blocked(waiter, "it waits by the new limit").await;
            // Another client asks, because a waiter does not renew.
            a.lost(waiter, &format!("waiter {place} holds nothing")).await;
        }
        for claim in &held[4 - left..] {
            a.held(claim, "a change of the limit ends no claim").await;
        }
        a.released(&held[4 - left], "it was held").await;
    }
    stage.granted(&b, &waiters[0], "1 of 2 is free").await;
    b.blocked(&waiters[1], "none of 2 is free").await;
    a.released(&held[3], "it was held").await;
    stage.granted(&b, &waiters[1], "1 of 2 is free").await;
    b.blocked(&waiters[2], "none of 2 is free").await;
    assert_eq!(resize(&a, &stage, 3).await, Resized::Yes { from: 2, to: 3, held: 2 });
    stage.granted(&b, &waiters[2], "1 of 3 is free").await;
}

/// H384: the limit is lowered after a waiter became a holder and before it learns that. Its next try is granted, and
/// that of no other waiter is. A store that grants only when it is asked has no such holder.
async fn a_grant_that_was_not_told_outlasts_a_lowered_limit(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let held = [(); 3].map(|()| stage.claim(permits(1, 3)));
    for claim in &held {
        stage.granted(&a, claim, "3 of 3 are free").await;
    }
    let waiters = [(); 2].map(|()| stage.claim(permits(1, 3)));
    for waiter in &waiters {
        b.blocked(waiter, "none of 3 is free").await;
    }
    a.released(&held[0], "it was held").await;
    let resized = resize(&a, &stage, 1).await;
    let Resized::Yes { from: 3, to: 1, held: holders @ (2 | 3) } = resized else {
        panic!("{resized:?}")
    };
    b.blocked(&waiters[1], "it waits by the new limit").await;
    if holders == 3 {
        stage.granted(&b, &waiters[0], "it held already").await;
        b.held(&waiters[0], "a change of the limit ends no claim").await;
        a.lost(&waiters[1], "it holds nothing").await;
    } else {
        b.blocked(&waiters[0], "2 are held, and 1 is allowed").await;
    }
    for claim in &held[1..] {
        a.held(claim, "a change of the limit ends no claim").await;
        a.released(claim, "it was held").await;
    }
    stage.granted(&b, &waiters[0], "it is the first").await;
    b.blocked(&waiters[1], "none of 1 is free").await;
    b.released(&waiters[0], "it was held").await;
    stage.granted(&b, &waiters[1], "1 of 1 is free").await;
}

/// The waiter is alone and waits all the same; raising the limit wakes it.
async fn a_limit_below_what_a_waiter_takes_can_be_raised(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let held = stage.claim(permits(1, 3));
    stage.granted(&a, &held, "the key is free").await;
    let large = stage.claim(permits(3, 3));
    b.blocked(&large, "2 of 3 are free").await;
    assert_eq!(resize(&a, &stage, 2).await, Resized::Yes { from: 3, to: 2, held: 1 });
    a.released(&held, "it was held").await;
    let blocked = b.blocked(&large, "it takes 3 of 2").await;
    a.blocked(&stage.passer(permits(1, 2)), "a waiter is ahead of it").await;
    assert_eq!(resize(&a, &stage, 3).await, Resized::Yes { from: 2, to: 3, held: 0 });
    if stage.expected().push {
        let woken = stage.now();
        let wait = b.backend.wait(&large, &blocked);
        stage.within(stage.lateness(woken), wait).await.expect("it may come").unwrap();
    }
    stage.granted(&b, &large, "3 of 3 are free").await;
}

/// A key at rest takes the limit of the next claim, so there is none to change.
async fn a_key_at_rest_has_no_limit_to_change(stage: Stage) {
    let a = stage.client().await;
    assert_eq!(resize(&a, &stage, 5).await, Resized::Unused);
    let claim = stage.claim(permits(1, 3));
    stage.granted(&a, &claim, "the key is free").await;
    a.released(&claim, "it was held").await;
    stage.soon_free(&a, &claim.key, "nobody is left").await;
    assert_eq!(resize(&a, &stage, 5).await, Resized::Unused);
    let barging = stage.claim(permits(1, 3)).with(|it| it.order = Order::Barging);
    match a.attempt(&barging).await {
        Ok(Attempt::Granted(_)) => a.released(&barging, "it was held").await,
        other => panic!("a resize of a key at rest leaves nothing: {other:?}"),
    }
}
