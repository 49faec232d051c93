//! B5: `renew_all` answers `Lost` only on the store's word, and never brings a lost claim back.

use latchwork_store::Mode;

use crate::case::{Case, case};
use crate::stage::Stage;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(an_expired_claim_stays_lost),
        case!(a_renewal_does_not_harm_the_successor),
        case!(a_released_claim_stays_lost),
        case!(a_waiting_claim_is_not_held),
        case!(a_claim_in_time_is_not_lost),
    ]
}

/// A renewal that comes after the claim ran out says so, and leaves the key free.
async fn an_expired_claim_stays_lost(stage: Stage) {
    for mode in stage.filling_modes() {
        let (a, b) = (stage.client().await, stage.client().await);
        let claim = stage.short_claim(mode);
        stage.granted(&a, &claim, "the key is free").await;
        let end = stage.now().plus(claim.ttl);
        stage.sleep_until(end.plus(stage.lateness(end))).await;
        a.lost(&claim, "its ttl is over").await;
        a.lost(&claim, "and stays over").await;
        let next = stage.claim(mode);
        stage.granted(&b, &next, "a renewal does not bring it back").await;
        b.released(&next, "it was held").await;
        a.lost(&claim, "and stays over").await;
        assert!(b.show(&claim.key).await.holders.is_empty(), "{mode:?}: nobody holds");
    }
}

/// A late renewal neither takes the key back nor touches who has it now.
async fn a_renewal_does_not_harm_the_successor(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let late = stage.short_claim(Mode::Exclusive);
    stage.granted(&a, &late, "the key is free").await;
    let next = stage.claim(Mode::Exclusive);
    let token = stage.acquire(&b, &next).await.token;
    a.lost(&late, "another has the key").await;
    assert_eq!(b.held(&next, "it was not touched").await.1, token);
    let holders = a.show(&next.key).await.holders;
    assert_eq!(holders.iter().map(|h| &h.holder).collect::<Vec<_>>(), [&next.holder]);
}

/// A renewal after the release says lost, and brings nothing back.
async fn a_released_claim_stays_lost(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let claim = stage.claim(Mode::Exclusive);
    stage.granted(&a, &claim, "the key is free").await;
    a.released(&claim, "it was held").await;
    a.lost(&claim, "it was released").await;
    assert!(a.show(&claim.key).await.is_free(), "a renewal brings nothing back");
    stage.granted(&b, &stage.claim(Mode::Exclusive), "the key is free").await;
}

/// A renewal does not admit a claim that waits, nor one that was never tried.
async fn a_waiting_claim_is_not_held(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let (held, waiter) = (stage.claim(Mode::Exclusive), stage.claim(Mode::Exclusive));
    stage.granted(&a, &held, "the key is free").await;
    b.blocked(&waiter, "the key is held").await;
    b.lost(&waiter, "it only waits").await;
    b.lost(&stage.claim(Mode::Exclusive), "it was never tried").await;
    a.held(&held, "nobody touched it").await;
    a.released(&held, "it was held").await;
    stage.granted(&b, &waiter, "it still waits").await;
}

/// A claim that is renewed in time is never called lost, for many ttls.
async fn a_claim_in_time_is_not_lost(stage: Stage) {
    let a = stage.client().await;
    let claim = stage.short_claim(Mode::Exclusive);
    let mut sent_at = stage.now();
    stage.granted(&a, &claim, "the key is free").await;
    for _ in 0..12 {
        stage.sleep_until(sent_at.plus(claim.ttl / 3)).await;
        let before = stage.now();
        let late = before.since(sent_at) >= claim.ttl;
        let renewal = a.renew(&claim).await;
        let answered = stage.now().since(sent_at);
        if renewal == latchwork_store::Renewal::Lost {
            assert!(late || answered >= claim.ttl, "lost after {answered:?} of {:?}", claim.ttl);
            return; // the machine stood still for longer than the ttl
        }
        sent_at = before;
    }
}
