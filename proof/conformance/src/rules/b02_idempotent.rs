//! B2: a try again with the same id gives the same place, or the same grant, same token, ttl
//! counted anew.

use latchwork_store::Mode;

use crate::case::{Case, case};
use crate::stage::Stage;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_repeated_try_gives_the_same_grant),
        case!(a_repeated_try_takes_no_more_permits, |e| e.permits),
        case!(a_repeated_try_counts_the_ttl_anew),
        case!(a_repeated_try_keeps_one_place, |e| e.fifo),
        case!(a_try_after_a_wait_is_the_same_claim),
    ]
}

/// A try of a held claim gives the same token, again and again.
async fn a_repeated_try_gives_the_same_grant(stage: Stage) {
    for mode in stage.filling_modes() {
        let a = stage.client().await;
        let claim = stage.claim(mode);
        let token = stage.granted(&a, &claim, "the key is free").await.token;
        for _ in 0..3 {
            assert_eq!(stage.granted(&a, &claim, "it is held already").await.token, token);
        }
        assert_eq!(a.held(&claim, "it is held").await.1, token);
        assert_eq!(a.show(&claim.key).await.holders.len(), 1, "{mode:?}: one claim, one holder");
        a.released(&claim, "one release ends what many tries began").await;
        assert!(a.show(&claim.key).await.holders.is_empty());
    }
}

/// A try of a held permit claim takes nothing more.
async fn a_repeated_try_takes_no_more_permits(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let permit = Mode::Permits { take: 1, of: 2 };
    let claim = stage.claim(permit);
    stage.granted(&a, &claim, "2 of 2 are free").await;
    stage.granted(&a, &claim, "it is held already").await;
    stage.granted(&b, &stage.claim(permit), "1 of 2 is free").await;
    b.blocked(&stage.passer(permit), "none is free").await;
}

/// A try of a held claim starts its ttl anew, as a renewal does.
async fn a_repeated_try_counts_the_ttl_anew(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let claim = stage.short_claim(Mode::Exclusive);
    let before = stage.now();
    stage.granted(&a, &claim, "the key is free").await;
    stage.sleep_until(before.plus(claim.ttl / 2)).await;
    let sent_at = stage.now();
    let ttl = stage.granted(&a, &claim, "it is held already").await.ttl;
    let (first, last) = (sent_at.plus(ttl), stage.now().plus(ttl));
    stage.free_between(&b, Mode::Exclusive, first, last, "the ttl was counted anew").await;
}

/// A waiting claim that is tried again stands in line once.
async fn a_repeated_try_keeps_one_place(stage: Stage) {
    let a = stage.client().await;
    let holder = stage.claim(Mode::Exclusive);
    stage.granted(&a, &holder, "the key is free").await;
    let waiter = stage.claim(Mode::Exclusive);
    for _ in 0..3 {
        a.blocked(&waiter, "the key is held").await;
    }
    let waiters = a.show(&waiter.key).await.waiters;
    assert_eq!(waiters.len(), 1, "one claim, one place: {waiters:?}");
    assert_eq!(waiters[0].id, Some(waiter.id));
    a.released(&waiter, "it waited").await;
    assert!(a.show(&waiter.key).await.waiters.is_empty(), "one withdrawal ends it");
}

/// The grant that ends a wait belongs to the claim that waited: a second look changes nothing.
async fn a_try_after_a_wait_is_the_same_claim(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let (first, second) = (stage.claim(Mode::Exclusive), stage.claim(Mode::Exclusive));
    stage.granted(&a, &first, "the key is free").await;
    b.blocked(&second, "the key is held").await;
    a.released(&first, "it was held").await;
    let token = stage.acquire(&b, &second).await.token;
    let again = stage.granted(&b, &second.clone().with(|it| it.waits = false), "it is held").await;
    assert_eq!(again.token, token);
    assert_eq!(b.show(&second.key).await.holders.len(), 1);
}
