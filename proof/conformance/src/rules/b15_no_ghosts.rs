//! B15: what an attempt leaves in the store, even one that lands after its own release, is gone
//! within its ttl.

use latchwork_store::{Claim, Mode, Order, Query};

use crate::case::{Case, case};
use crate::stage::{Stage, drop_after};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_dropped_try_ends_within_its_ttl),
        case!(a_late_try_ends_within_its_ttl),
        case!(a_silent_waiter_ends_within_its_ttl),
        case!(nothing_is_listed_when_all_is_over),
    ]
}

/// Expects that after the ttl of `claim` nothing of it is left, and that others get the key.
async fn gone(stage: &Stage, claim: &Claim, why: &str) {
    let end = stage.now().plus(claim.ttl);
    stage.sleep_until(end).await;
    let b = stage.client().await;
    loop {
        let shown = b.show(&claim.key).await;
        let parties = shown.holders.iter().chain(&shown.waiters);
        if !parties.map(|party| &party.holder).any(|text| *text == claim.holder) {
            break;
        }
        let late = stage.now().since(end);
        assert!(late <= stage.lateness(end), "{why}: still there {late:?} too late: {shown:?}");
        stage.sleep(stage.short() / 50).await;
    }
    let next = stage.claim(claim.mode);
    stage.granted(&b, &next, why).await;
    b.released(&next, "it was held").await;
}

/// A try dropped at each of its pending points, with no release sent, is gone within its ttl.
async fn a_dropped_try_ends_within_its_ttl(stage: Stage) {
    let a = stage.client().await;
    for polls in 1..8 {
        let claim = stage.short_claim(Mode::Exclusive);
        let ended = drop_after(polls, a.attempt(&claim)).await.is_some();
        gone(&stage, &claim, "a dropped try").await;
        if ended {
            return;
        }
    }
}

/// A try that is cut at its first pending point, released, and then perhaps arrives, is no ghost.
async fn a_late_try_ends_within_its_ttl(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    for (n, client) in [&a, &b, &a].into_iter().enumerate() {
        let claim = stage.short_claim(Mode::Exclusive);
        drop_after(1, a.attempt(&claim)).await;
        client.release(&claim).await;
        if n == 2 {
            // The request of the cut try arrives only now.
            let late = claim.clone().with(|it| it.order = Order::Fifo);
            a.attempt(&late).await.expect("no fault");
        }
        gone(&stage, &claim, "a try after its own release").await;
    }
}

/// A waiter that is never heard of again leaves its place and its mark within its ttl.
async fn a_silent_waiter_ends_within_its_ttl(stage: Stage) {
    for order in [Order::Fifo, Order::Barging] {
        let (a, b) = (stage.client().await, stage.client().await);
        let held = stage.claim(Mode::Exclusive);
        let silent = stage.short_claim(Mode::Exclusive).with(|it| it.order = order);
        stage.granted(&a, &held, "the key is free").await;
        b.blocked(&silent, "the key is held").await;
        let start = stage.now();
        stage.sleep(silent.ttl).await;
        stage.sleep(stage.lateness(start)).await;
        let waiters = a.show(&held.key).await.waiters;
        assert!(waiters.is_empty(), "{order:?}: {waiters:?}");
        a.released(&held, "it was held").await;
        let next = stage.claim(Mode::Exclusive);
        stage.granted(&a, &next, "the silent one has no place").await;
        a.released(&next, "it was held").await;
    }
}

/// When every claim has ended, by release or ttl, no key is listed.
async fn nothing_is_listed_when_all_is_over(stage: Stage) {
    let a = stage.client().await;
    for (n, mode) in stage.filling_modes().into_iter().enumerate() {
        for ended_by_release in [true, false] {
            let name = format!("over/{n}/{ended_by_release}");
            let key = latchwork_store::Key::new(name).expect("a good key");
            let claim = stage.short_claim(mode).with(|it| it.key = key);
            stage.granted(&a, &claim, "the key is free").await;
            if ended_by_release {
                a.released(&claim, "it was held").await;
            }
        }
    }
    let start = stage.now();
    stage.sleep(stage.short()).await;
    stage.sleep(stage.lateness(start)).await;
    let all = Query::Prefix("".into());
    let listed = a.backend.inspect(&all).await.expect("an inspection without fault");
    assert!(listed.is_empty(), "{listed:?}");
}
