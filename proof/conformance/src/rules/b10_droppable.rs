//! B10: dropping a verb's future anywhere is safe for the process and counts as an unknown effect.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use latchwork_store::{Attempt, Claim, Linger, Mode, Query, Released};

use crate::case::{Case, case};
use crate::harness::Client;
use crate::stage::{Stage, drop_after};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_try_can_be_dropped),
        case!(a_blocked_try_can_be_dropped),
        case!(a_wait_can_be_dropped),
        case!(a_renewal_can_be_dropped),
        case!(a_release_can_be_dropped),
        case!(an_inspection_can_be_dropped),
        case!(tries_that_nobody_polls_hold_up_no_other_verb),
    ]
}

/// More polls than any verb needs; a wait may be polled on and on.
const MOST_POLLS: u32 = 60;

/// Nothing of `claim` may be left after its release was answered, and the key must work.
async fn clean(stage: &Stage, client: &Client, claim: &Claim, polls: u32) {
    client.release(claim).await;
    assert_eq!(client.release(claim).await, Released::NotHeld, "dropped after {polls} polls");
    let next = stage.claim(claim.mode);
    stage.granted(client, &next, "what was dropped was released").await;
    client.released(&next, "it was held").await;
}

/// A try that is dropped at any poll may have applied; the release of its id ends it.
async fn a_try_can_be_dropped(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    for polls in 0..MOST_POLLS {
        let claim = stage.short_claim(Mode::Exclusive);
        let ended = drop_after(polls, a.attempt(&claim)).await.is_some();
        clean(&stage, &a, &claim, polls).await;
        stage.granted(&b, &claim_like(&stage, &claim), "for others too").await;
        let left = b.show(&claim.key).await.holders;
        b.released(&by_id(&stage, &left), "it was held").await;
        if ended {
            return;
        }
    }
    panic!("a try took more than {MOST_POLLS} polls");
}

fn claim_like(stage: &Stage, claim: &Claim) -> Claim {
    stage.claim(claim.mode)
}

fn by_id(stage: &Stage, holders: &[latchwork_store::Party]) -> Claim {
    assert_eq!(holders.len(), 1, "one holder: {holders:?}");
    stage.claim(holders[0].mode).with(|it| it.id = holders[0].id.expect("an id"))
}

/// A try that would be blocked and is dropped does not disturb the holder or the line.
async fn a_blocked_try_can_be_dropped(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    for polls in 0..MOST_POLLS {
        let (held, claim) = (stage.claim(Mode::Exclusive), stage.claim(Mode::Exclusive));
        stage.granted(&b, &held, "the key is free").await;
        let ended = drop_after(polls, a.attempt(&claim)).await.is_some();
        a.release(&claim).await;
        b.held(&held, "a dropped try does not touch it").await;
        b.released(&held, "it was held").await;
        clean(&stage, &a, &claim, polls).await;
        if ended {
            return;
        }
    }
    panic!("a try took more than {MOST_POLLS} polls");
}

/// A wait that is dropped keeps the place, wakes nobody and eats no wake-up of others.
async fn a_wait_can_be_dropped(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    for polls in 0..4 {
        let [held, first, second] = [(); 3].map(|()| stage.claim(Mode::Exclusive));
        stage.granted(&b, &held, "the key is free").await;
        let told = a.blocked(&first, "the key is held").await;
        let blocked = b.blocked(&second, "the key is held").await;
        let wait = drop_after(polls, a.backend.wait(&first, &told));
        stage.within(Duration::from_millis(20), wait).await;
        b.released(&held, "it was held").await;
        stage.granted(&a, &first, "a dropped wait keeps the place").await;
        a.released(&first, "it was held").await;
        if stage.expected().push {
            let wait = b.backend.wait(&second, &blocked);
            let wake = stage.within(second.ttl / 4, wait).await;
            wake.expect("the others are woken").expect("a wait without fault");
        }
        stage.granted(&b, &second, "it is its turn").await;
        b.released(&second, "it was held").await;
    }
}

/// A renewal that is dropped ends nothing.
async fn a_renewal_can_be_dropped(stage: Stage) {
    let a = stage.client().await;
    let claim = stage.claim(Mode::Exclusive);
    let token = stage.granted(&a, &claim, "the key is free").await.token;
    for polls in 0..MOST_POLLS {
        let renewal = a.backend.renew_all(std::slice::from_ref(&claim));
        let ended = drop_after(polls, renewal).await.is_some();
        assert_eq!(a.held(&claim, "a dropped renewal ends nothing").await.1, token);
        if ended {
            a.released(&claim, "it was held").await;
            return;
        }
    }
    panic!("a renewal took more than {MOST_POLLS} polls");
}

/// A release that is dropped may have applied; another one makes sure.
async fn a_release_can_be_dropped(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    for polls in 0..MOST_POLLS {
        let claim = stage.claim(Mode::Exclusive);
        stage.granted(&a, &claim, "the key is free").await;
        let release = a.backend.release(&claim, Linger::None);
        let ended = drop_after(polls, release).await.is_some();
        clean(&stage, &a, &claim, polls).await;
        let next = stage.claim(Mode::Exclusive);
        stage.granted(&b, &next, "the key is free").await;
        b.released(&next, "it was held").await;
        if ended {
            return;
        }
    }
    panic!("a release took more than {MOST_POLLS} polls");
}

/// An inspection that is dropped has no effect, as always.
async fn an_inspection_can_be_dropped(stage: Stage) {
    let a = stage.client().await;
    let claim = stage.claim(Mode::Exclusive);
    stage.granted(&a, &claim, "the key is free").await;
    for polls in 0..MOST_POLLS {
        let one = Query::Key(claim.key.clone());
        let all = Query::Prefix("".into());
        let ended = drop_after(polls, a.backend.inspect(&one)).await.is_some()
            & drop_after(polls, a.backend.inspect(&all)).await.is_some();
        a.held(&claim, "an inspection ends nothing").await;
        if ended {
            return;
        }
    }
    panic!("an inspection took more than {MOST_POLLS} polls");
}

/// Their caller does something else, and will poll them later.
async fn tries_that_nobody_polls_hold_up_no_other_verb(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let held = stage.claim(Mode::Exclusive);
    stage.granted(&a, &held, "the key is free").await;
    let claims: Vec<Claim> = (0..12).map(|_| stage.claim(Mode::Exclusive)).collect();
    let mut tries: Vec<_> = claims.iter().map(|claim| Box::pin(b.attempt(claim))).collect();
    let mut answers = Vec::new();
    for one in &mut tries {
        answers.push(poll_fn(|cx| Poll::Ready(one.as_mut().poll(cx))).await);
    }
    let start = stage.now();
    b.show(&held.key).await;
    b.blocked(&stage.passer(Mode::Exclusive), "the key is held").await;
    let (took, late) = (stage.now().since(start), stage.lateness(start));
    assert!(took <= Duration::from_secs(1) + late, "{took:?} of a second and {late:?}");
    for ((one, first), claim) in tries.into_iter().zip(answers).zip(&claims) {
        let answer = match first {
            Poll::Ready(answer) => answer,
            Poll::Pending => one.await,
        };
        assert!(matches!(answer, Ok(Attempt::Blocked(_))), "{answer:?}");
        b.release(claim).await;
    }
    a.released(&held, "it was held").await;
}
