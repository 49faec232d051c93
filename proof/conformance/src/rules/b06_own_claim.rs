//! B6: `release` and `renew_all` touch nothing but this id; `release` is idempotent and also
//! withdraws a waiter.

use latchwork_store::{Cause, Linger, Mode, Released};

use crate::case::{Case, case};
use crate::harness::Client;
use crate::stage::Stage;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_stale_release_leaves_the_successor),
        case!(a_stranger_releases_and_renews_nothing),
        case!(a_release_is_idempotent),
        case!(a_release_withdraws_a_waiter),
        case!(the_id_is_enough_to_release),
        case!(one_member_of_many_leaves_alone, |e| e.shared || e.permits),
        case!(only_a_holder_closes_the_key, |e| e.linger),
        case!(a_closed_key_can_be_opened, |e| e.linger),
        case!(to_open_a_held_key_changes_nothing, |e| e.linger),
        case!(to_open_an_open_key_changes_nothing, |e| e.linger),
    ]
}

/// The release of a claim that ran out does not free the one who came after it.
async fn a_stale_release_leaves_the_successor(stage: Stage) {
    for mode in stage.filling_modes() {
        let (a, b) = (stage.client().await, stage.client().await);
        let late = stage.short_claim(mode);
        stage.granted(&a, &late, "the key is free").await;
        let end = stage.now().plus(late.ttl);
        stage.sleep_until(end.plus(stage.lateness(end))).await;
        let next = stage.claim(mode);
        stage.granted(&b, &next, "the ttl is over").await;
        assert_eq!(a.release(&late).await, Released::NotHeld, "{mode:?}: nothing of this id");
        b.held(&next, "another's release does not free it").await;
        let rival = if mode == Mode::Read { Mode::Write } else { mode };
        a.blocked(&stage.passer(rival), "the key is held").await;
        b.released(&next, "it was held").await;
    }
}

/// Verbs with another id on the same key find nothing, and prolong nothing.
async fn a_stranger_releases_and_renews_nothing(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let sent_at = stage.now();
    let claim = stage.short_claim(Mode::Exclusive);
    let ttl = stage.granted(&a, &claim, "the key is free").await.ttl;
    let answered_at = stage.now();
    let stranger = stage.claim(Mode::Exclusive);
    assert_eq!(b.release(&stranger).await, Released::NotHeld);
    stage.sleep_until(sent_at.plus(ttl / 2)).await;
    b.lost(&stranger, "it holds nothing").await;
    assert_eq!(b.release(&stranger).await, Released::NotHeld);
    let (first, last) = (sent_at.plus(ttl), answered_at.plus(ttl));
    stage.free_between(&b, Mode::Exclusive, first, last, "neither freed nor prolonged").await;
}

/// A second release finds nothing and is no error.
async fn a_release_is_idempotent(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let claim = stage.claim(Mode::Exclusive);
    stage.granted(&a, &claim, "the key is free").await;
    a.released(&claim, "it was held").await;
    assert_eq!(a.release(&claim).await, Released::NotHeld);
    let next = stage.claim(Mode::Exclusive);
    stage.granted(&b, &next, "the key is free").await;
    assert_eq!(a.release(&claim).await, Released::NotHeld);
    b.held(&next, "it was not touched").await;
}

/// The release of a waiting claim ends its place and nothing else.
async fn a_release_withdraws_a_waiter(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let (held, waiter) = (stage.claim(Mode::Exclusive), stage.claim(Mode::Exclusive));
    stage.granted(&a, &held, "the key is free").await;
    b.blocked(&waiter, "the key is held").await;
    b.released(&waiter, "it waited").await;
    assert_eq!(b.release(&waiter).await, Released::NotHeld);
    stage.soon(&b, &waiter.key, "it was withdrawn", |shown| shown.waiters.is_empty()).await;
    a.held(&held, "a waiter that leaves takes nothing along").await;
    a.released(&held, "it was held").await;
    stage.granted(&a, &stage.claim(Mode::Exclusive), "nobody waits").await;
}

/// A claim is named by its id alone: another process that was shown it can end it.
async fn the_id_is_enough_to_release(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    for mode in stage.filling_modes() {
        let stuck = stage.claim(mode);
        let old = stage.granted(&a, &stuck, "the key is free").await.token;
        let shown = b.show(&stuck.key).await.holders;
        let id = shown[0].id.expect("a holder of ours has an id");
        let forced = stage.claim(mode).with(|it| { it.id = id; it.holder = "somebody else".into(); });
        b.released(&forced, "it was held").await;
        a.lost(&stuck, "it was released by another").await;
        a.release(&stuck).await; // may find what others have not cleared yet
        assert_eq!(a.release(&stuck).await, Released::NotHeld);
        let next = stage.claim(mode);
        let new = stage.granted(&b, &next, "the key is free").await.token;
        assert!(new > old, "{mode:?}: {new} after {old}");
        b.released(&next, "it was held").await;
    }
}

/// One of several holders leaves, and the others stay.
async fn one_member_of_many_leaves_alone(stage: Stage) {
    let pairs = [
        (Mode::Read, Mode::Write),
        (Mode::Permits { take: 1, of: 2 }, Mode::Permits { take: 2, of: 2 }),
    ];
    for (member, rival) in pairs {
        if !stage.filling_modes().contains(&rival) {
            continue;
        }
        let (a, b) = (stage.client().await, stage.client().await);
        let (leaving, staying) = (stage.claim(member), stage.claim(member));
        stage.granted(&a, &leaving, "the key is free").await;
        stage.granted(&b, &staying, "they share").await;
        a.released(&leaving, "it was held").await;
        a.lost(&leaving, "it was released").await;
        b.held(&staying, "it was not touched").await;
        a.blocked(&stage.passer(rival), "one is still there").await;
        b.released(&staying, "it was held").await;
        let last = stage.claim(rival);
        stage.granted(&a, &last, "all have left").await;
        a.released(&last, "it was held").await;
    }
}

/// A release with a linger closes the key only for a claim that was held.
async fn only_a_holder_closes_the_key(stage: Stage) {
    let a = stage.client().await;
    let linger = Linger::For(stage.short() * 100);
    let stranger = stage.claim(Mode::Exclusive);
    let released = a.backend.release(&stranger, linger).await.expect("no fault");
    assert_eq!(released, Released::NotHeld);
    let (held, waiter) = (stage.claim(Mode::Exclusive), stage.claim(Mode::Exclusive));
    stage.granted(&a, &held, "a stranger closes nothing").await;
    a.blocked(&waiter, "the key is held").await;
    let released = a.backend.release(&waiter, linger).await.expect("no fault");
    assert_eq!(released, Released::Yes);
    a.released(&held, "it was held").await;
    stage.granted(&a, &stage.claim(Mode::Exclusive), "a waiter closes nothing").await;
}

/// Asks a store to open the key of the trial, under an id that it has never seen.
async fn open(stage: &Stage, client: &Client) -> Released {
    let request = stage.passer(Mode::Exclusive);
    client.backend.release(&request, Linger::End).await.expect("no fault")
}

/// What was closed admits again, once, with a token above that of the hold that closed it.
async fn a_closed_key_can_be_opened(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let linger = Linger::For(stage.short() * 100);
    for (closes, opens) in [(&a, &b), (&b, &a), (&a, &a)] {
        let held = stage.claim(Mode::Exclusive);
        let old = stage.granted(closes, &held, "the key is open").await.token;
        let released = closes.backend.release(&held, linger).await.expect("no fault");
        assert_eq!(released, Released::Yes);
        let blocked = opens.blocked(&stage.passer(Mode::Exclusive), "the key lingers").await;
        assert_eq!(blocked.cause, Cause::Linger);
        assert_eq!(open(&stage, opens).await, Released::Yes);
        let shown = closes.show(&held.key).await;
        assert_eq!(shown.linger, None, "{shown:?}");
        assert_eq!(open(&stage, closes).await, Released::NotHeld, "it was opened before");
        let next = stage.claim(Mode::Exclusive);
        let new = stage.granted(opens, &next, "the key was opened").await.token;
        assert!(new > old, "{new} after {old}");
        opens.released(&next, "it was held").await;
    }
}

/// A key that is held is not opened, and its holder and its waiter stay, whatever the request's id.
async fn to_open_a_held_key_changes_nothing(stage: Stage) {
    for mode in stage.filling_modes() {
        let stage = stage.again().await;
        let (a, b) = (stage.client().await, stage.client().await);
        let (held, waiter) = (stage.claim(mode), stage.claim(mode_beside(mode)));
        let token = stage.granted(&a, &held, "the key is free").await.token;
        b.blocked(&waiter, "the key is held").await;
        assert_eq!(open(&stage, &b).await, Released::NotHeld, "{mode:?}");
        for (client, claim) in [(&a, &held), (&b, &held), (&b, &waiter)] {
            let opened = client.backend.release(claim, Linger::End).await.expect("no fault");
            assert_eq!(opened, Released::NotHeld, "{mode:?}: it ends no claim");
        }
        let (_, still) = a.held(&held, "it was not touched").await;
        assert_eq!(still, token, "{mode:?}");
        b.blocked(&waiter, "the key is held").await;
        a.released(&held, "it was held").await;
        stage.granted(&b, &waiter, "it kept its place").await;
        b.released(&waiter, "it was held").await;
    }
}

/// A key that was never used, and one that was released without a linger.
async fn to_open_an_open_key_changes_nothing(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    assert_eq!(open(&stage, &a).await, Released::NotHeld, "it was never used");
    let first = stage.claim(Mode::Exclusive);
    let old = stage.granted(&a, &first, "the key is free").await.token;
    a.released(&first, "it was held").await;
    assert_eq!(open(&stage, &b).await, Released::NotHeld, "it is open");
    let next = stage.claim(Mode::Exclusive);
    assert!(stage.granted(&b, &next, "the key is free").await.token > old);
}

/// A mode that has to wait while a claim of this mode fills the key.
fn mode_beside(mode: Mode) -> Mode {
    if mode == Mode::Read { Mode::Write } else { mode }
}
