//! B11: decides nothing by time: what must run runs on the `Io` given at connect, ends when the
//! backend is dropped, and never renews a claim that core has not renewed within its ttl.

use std::sync::atomic::Ordering;

use latchwork_store::Mode;

use crate::case::{Case, case};
use crate::stage::{Stage, drop_after};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(nothing_is_renewed_unasked),
        case!(the_claims_of_a_dead_client_end),
        case!(tasks_end_with_the_backend),
    ]
}

/// A client that lives on and does other things does not keep a claim alive that core forgot.
async fn nothing_is_renewed_unasked(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let sent_at = stage.now();
    let forgotten = stage.short_claim(Mode::Exclusive);
    let ttl = stage.granted(&a, &forgotten, "the key is free").await.ttl;
    let answered_at = stage.now();
    let key = latchwork_store::Key::new("something else").expect("a good key");
    let busy = stage.short_claim(Mode::Exclusive).with(|it| it.key = key);
    stage.granted(&a, &busy, "the key is free").await;
    for _ in 0..3 {
        stage.sleep(busy.ttl / 4).await;
        a.held(&busy, "it was renewed in time").await;
    }
    let (first, last) = (sent_at.plus(ttl), answered_at.plus(ttl));
    stage.free_between(&b, Mode::Exclusive, first, last, "not heard of for its ttl").await;
    a.lost(&forgotten, "its ttl is over").await;
}

/// What a client held and waited for ends by itself when the client dies: by ttl, or at once.
async fn the_claims_of_a_dead_client_end(stage: Stage) {
    let (a, b, c) = (stage.client().await, stage.client().await, stage.client().await);
    let (held, waiting) =
        (stage.short_claim(Mode::Exclusive), stage.short_claim(Mode::Exclusive));
    let survivor = stage.claim(Mode::Exclusive);
    stage.granted(&a, &held, "the key is free").await;
    b.blocked(&waiting, "the key is held").await;
    c.blocked(&survivor, "the key is held").await;
    let end = stage.now().plus(held.ttl);
    a.kill();
    b.kill();
    // The dead waiter may be given its turn first, and a grant of its ttl with it.
    let patient = survivor.with(|it| it.ttl = stage.short());
    stage.acquire(&c, &patient).await;
    let late = stage.now().since(end);
    let most = patient.ttl + stage.lateness(end);
    assert!(late <= most, "{late:?} after the end of the dead");
}

/// The tasks that a backend spawned are over soon after its last user has gone; those that clean
/// up soon after the ttl of what they release is over.
async fn tasks_end_with_the_backend(stage: Stage) {
    let (other, held) = (stage.client().await, stage.claim(Mode::Exclusive));
    stage.granted(&other, &held, "the key is free").await;
    // The end of a backend races with its tasks: several chances for each.
    for round in 0..8 {
        let a = stage.client().await;
        let waiter = stage.short_claim(Mode::Exclusive);
        let blocked = a.blocked(&waiter, "the key is held").await;
        drop_after(1, a.backend.wait(&waiter, &blocked)).await;
        if round % 2 == 0 {
            a.released(&waiter, "it waited").await;
            stage.settle().await;
        }
        let tasks = a.kill();
        let start = stage.now();
        while tasks.load(Ordering::SeqCst) > 0 {
            let left = tasks.load(Ordering::SeqCst);
            let most = waiter.ttl * 2 + stage.lateness(start);
            assert!(stage.now().since(start) <= most, "{left} tasks still run");
            stage.settle().await;
        }
    }
}
