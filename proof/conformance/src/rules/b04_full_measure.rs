//! B4: a grant or renewal lasts at least its `ttl` from the moment the request reached the store.

use latchwork_store::{Cause, Claim, Linger, Mode};

use crate::case::{Case, case};
use crate::harness::Client;
use crate::stage::Stage;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_grant_lasts_its_ttl),
        case!(a_renewal_lasts_its_ttl),
        case!(a_renewal_for_another_ttl_lasts_that),
        case!(a_grant_after_waiting_lasts_its_ttl),
        case!(each_reader_has_its_own_ttl, |e| e.shared),
        case!(each_permit_has_its_own_ttl, |e| e.permits),
        case!(renewing_many_renews_each),
        case!(a_linger_lasts_its_full_time, |e| e.linger),
    ]
}

/// A claim that was granted and not heard of again is kept for its ttl, and not much longer.
async fn a_grant_lasts_its_ttl(stage: Stage) {
    for mode in stage.filling_modes() {
        let (a, b) = (stage.client().await, stage.client().await);
        let sent_at = stage.now();
        let claim = stage.short_claim(mode);
        let ttl = stage.granted(&a, &claim, "the key is free").await.ttl;
        let (first, last) = (sent_at.plus(ttl), stage.now().plus(ttl));
        let rival = if mode == Mode::Read { Mode::Write } else { mode };
        stage.free_between(&b, rival, first, last, "a grant lasts its ttl").await;
    }
}

/// A renewed claim is kept for the ttl counted from the renewal.
async fn a_renewal_lasts_its_ttl(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let claim = stage.short_claim(Mode::Exclusive);
    let token = stage.granted(&a, &claim, "the key is free").await.token;
    let mut sent_at = stage.now();
    let mut ttl = claim.ttl;
    for _ in 0..4 {
        stage.sleep_until(sent_at.plus(claim.ttl / 2)).await;
        sent_at = stage.now();
        let passer = stage.passer(Mode::Exclusive);
        let (renewed, _) = tokio::join!(
            a.held(&claim, "it was renewed in time"),
            b.blocked(&passer, "the key is held")
        );
        ttl = renewed.0;
        assert_eq!(renewed.1, token, "a renewal keeps the token");
    }
    let (first, last) = (sent_at.plus(ttl), stage.now().plus(ttl));
    stage.free_between(&b, Mode::Exclusive, first, last, "a renewal lasts its ttl").await;
}

/// A store that says that renewals may change the ttl keeps the claim for the new one.
async fn a_renewal_for_another_ttl_lasts_that(stage: Stage) {
    for mode in stage.filling_modes() {
        let (a, b) = (stage.client().await, stage.client().await);
        let short = stage.short_claim(mode);
        let granted = stage.granted(&a, &short, "the key is free").await.ttl;
        if !a.backend.ttl_may_change() {
            let (ttl, _) = a.held(&short, "it was renewed in time").await;
            assert!(ttl <= granted * 2, "the ttl stays about what it was");
            a.released(&short, "it was held").await;
            continue;
        }
        let longer = short.with(|it| it.ttl *= 2);
        let sent_at = stage.now();
        let (ttl, _) = a.held(&longer, "it was renewed in time").await;
        assert!(ttl >= longer.ttl, "granted {ttl:?} of {:?}", longer.ttl);
        let (first, last) = (sent_at.plus(ttl), stage.now().plus(ttl));
        let rival = if mode == Mode::Read { Mode::Write } else { mode };
        stage.free_between(&b, rival, first, last, "a renewal lasts the ttl it asked for").await;
    }
}

/// A claim that had to wait has its full ttl from the try that was granted.
async fn a_grant_after_waiting_lasts_its_ttl(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let held = stage.claim(Mode::Exclusive);
    let waiter = stage.short_claim(Mode::Exclusive);
    stage.granted(&a, &held, "the key is free").await;
    b.blocked(&waiter, "the key is held").await;
    stage.sleep(waiter.ttl / 2).await;
    a.released(&held, "it was held").await;
    let sent_at = stage.now();
    let ttl = stage.granted(&b, &waiter, "it is its turn").await.ttl;
    let (first, last) = (sent_at.plus(ttl), stage.now().plus(ttl));
    stage.free_between(&a, Mode::Exclusive, first, last, "counted from the last try").await;
}

/// A reader ends with its own ttl, whatever other readers do.
async fn each_reader_has_its_own_ttl(stage: Stage) {
    own_ttl(&stage, Mode::Read, Mode::Write).await;
}

/// A permit ends with its own ttl, whatever other holders do.
async fn each_permit_has_its_own_ttl(stage: Stage) {
    own_ttl(&stage, Mode::Permits { take: 1, of: 2 }, Mode::Permits { take: 2, of: 2 }).await;
}

async fn own_ttl(stage: &Stage, member: Mode, rival: Mode) {
    let (a, b) = (stage.client().await, stage.client().await);
    let (lapsing, renewed) = (stage.short_claim(member), stage.short_claim(member));
    let start = stage.now();
    stage.granted(&b, &renewed, "the key is free").await;
    let sent_at = stage.now();
    let ttl = stage.granted(&a, &lapsing, "they share").await.ttl;
    let answered_at = stage.now();
    // The other one is renewed again and again; the first must neither gain nor lose by that.
    let (first, last) = (sent_at.plus(ttl), answered_at.plus(ttl));
    loop {
        let asked_at = stage.now();
        let holders = a.show(&lapsing.key).await.holders;
        if !holders.iter().any(|holder| holder.holder == lapsing.holder) {
            let early = first.since(stage.now());
            assert!(early.is_zero(), "{member:?} ended {early:?} too early");
            break;
        }
        let late = asked_at.since(last);
        let most = stage.lateness(start);
        assert!(late <= most, "{member:?} still held {late:?} too late: others are renewed");
        stage.sleep(ttl / 10).await;
        b.held(&renewed, "it was renewed in time").await;
    }
    a.lost(&lapsing, "its own ttl is over").await;
    a.blocked(&stage.passer(rival), "the other one is held").await;
    b.released(&renewed, "it was held").await;

    // And a short one beside a long one ends alone.
    let long = stage.claim(member);
    let short = stage.short_claim(member);
    stage.granted(&a, &long, "the key is free").await;
    stage.granted(&b, &short, "they share").await;
    wait_until_lost(stage, &b, &short).await;
    a.held(&long, "its own ttl is longer").await;
    b.blocked(&stage.passer(rival), "the long one is held").await;
}

/// Looks by `inspect`, which renews nothing, until a claim has run out.
async fn wait_until_lost(stage: &Stage, client: &Client, claim: &Claim) {
    let last = stage.now().plus(claim.ttl);
    while client.show(&claim.key).await.holders.iter().any(|h| h.holder == claim.holder) {
        assert!(stage.now().since(last) <= stage.lateness(last), "it never ends: {claim:?}");
        stage.sleep(claim.ttl / 20).await;
    }
}

/// One call renews many claims on many keys, and answers for each in order.
async fn renewing_many_renews_each(stage: Stage) {
    let a = stage.client().await;
    let mut claims: Vec<Claim> = (0..20)
        .map(|n| stage.claim(Mode::Exclusive).with(|it| it.key = latchwork_store::Key::new(format!("many/{n}")).expect("a good key")))
        .collect();
    let mut tokens = Vec::new();
    for claim in claims.iter().filter(|c| !c.key.as_str().ends_with('7')) {
        tokens.push(Some(stage.granted(&a, claim, "the key is free").await.token));
    }
    tokens.insert(7, None);
    tokens.insert(17, None);
    claims.push(claims[0].clone());
    tokens.push(tokens[0]);
    let answers = a.backend.renew_all(&claims).await;
    assert_eq!(answers.len(), claims.len(), "one answer for each claim");
    for ((claim, token), answer) in claims.iter().zip(&tokens).zip(answers) {
        let held = match answer.expect("a renewal without fault") {
            latchwork_store::Renewal::Held { token, ttl, .. } => {
                assert!(ttl >= claim.ttl, "{ttl:?} instead of {:?}", claim.ttl);
                Some(token)
            }
            latchwork_store::Renewal::Lost => None,
        };
        assert_eq!(held, *token, "{:?}", claim.key);
    }
    assert!(a.backend.renew_all(&[]).await.is_empty(), "nothing asked, nothing answered");
}

/// A key that was released with a linger admits nobody for that long, and then somebody.
async fn a_linger_lasts_its_full_time(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let claim = stage.claim(Mode::Exclusive);
    stage.granted(&a, &claim, "the key is free").await;
    let sent_at = stage.now();
    let linger = Linger::For(stage.short());
    a.backend.release(&claim, linger).await.expect("the backend can linger");
    let (first, last) = (sent_at.plus(stage.short()), stage.now().plus(stage.short()));
    let blocked = b.blocked(&stage.passer(Mode::Exclusive), "the key lingers").await;
    assert_eq!(blocked.cause, Cause::Linger);
    // A store that counts milliseconds is past the end one later.
    let longest = stage.short() + std::time::Duration::from_millis(1);
    assert!(blocked.retry_after.is_none_or(|after| after <= longest));
    let shown = b.show(&claim.key).await;
    assert!(shown.holders.is_empty() && shown.linger.is_some(), "{shown:?}");
    stage.free_between(&b, Mode::Exclusive, first, last, "a linger lasts its measure").await;
}
