//! B14: `inspect` changes nothing.

use std::pin::Pin;
use std::time::Duration;

use latchwork_store::{Cause, Key, Linger, Mode, Query, Released};

use crate::case::{Case, case};
use crate::stage::Stage;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(inspection_shows_what_is_there),
        case!(inspection_prolongs_nothing),
        case!(inspection_wakes_no_waiter),
        case!(inspection_makes_no_key),
        case!(a_linger_beside_readers_is_shown, |e| e.linger && e.shared),
        case!(the_holder_that_closed_a_key_is_shown, |e| e.linger),
    ]
}

/// Holders and waiters are shown with id, mode, text, token and what is left; the same each time.
/// To others the id may be one that only the store knows; B6 tries that it releases.
async fn inspection_shows_what_is_there(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    for mode in stage.filling_modes() {
        let rival = if mode == Mode::Read { Mode::Write } else { mode };
        let (held, waiter) = (stage.claim(mode), stage.claim(rival));
        let token = stage.granted(&a, &held, "the key is free").await.token;
        b.blocked(&waiter, "the key is held").await;
        for _ in 0..5 {
            for client in [&a, &b] {
                let shown = client.show(&held.key).await;
                assert_eq!(shown.shape, Some(mode.shape()));
                assert_eq!(shown.holders.len(), 1, "{mode:?}");
                let holder = &shown.holders[0];
                assert_eq!((&holder.holder, holder.mode), (&held.holder, mode));
                assert!(holder.id.is_some(), "a holder of ours has an id");
                assert_eq!(holder.token, Some(token));
                assert!(holder.remaining.is_none_or(|left| left <= held.ttl * 2));
                assert!(shown.token == 0 || shown.token >= token, "{shown:?}");
                assert_eq!(shown.linger, None);
                if stage.expected().fifo {
                    let texts: Vec<_> = shown.waiters.iter().map(|w| &w.holder).collect();
                    assert_eq!(texts, [&waiter.holder], "{mode:?}");
                    assert_eq!(shown.waiters[0].mode, rival);
                }
                assert!(!shown.is_free());
            }
        }
        assert_eq!(a.show(&held.key).await.holders[0].id, Some(held.id), "to its own client");
        a.released(&held, "it was held").await;
        stage.granted(&b, &waiter, "an inspection took nobody's turn").await;
        b.released(&waiter, "it was held").await;
        stage.soon_free(&a, &held.key, "all were released").await;
    }
}

/// Why nobody joins a reader is shown: others have left with a linger, of which the longest counts.
async fn a_linger_beside_readers_is_shown(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let [leaves, follows, stays] = [(); 3].map(|()| stage.claim(Mode::Read));
    for (client, claim) in [(&a, &leaves), (&a, &follows), (&b, &stays)] {
        stage.granted(client, claim, "readers share").await;
    }
    for (claim, length) in [(&leaves, stage.short() * 100), (&follows, stage.short())] {
        let left = a.backend.release(claim, Linger::For(length)).await;
        left.expect("the backend can linger");
    }
    let blocked = a.blocked(&stage.passer(Mode::Read), "the key lingers").await;
    assert_eq!(blocked.cause, Cause::Linger);
    for client in [&a, &b] {
        let shown = client.show(&stays.key).await;
        assert_eq!(shown.holders.len(), 1, "{shown:?}");
        assert!(shown.linger.is_some_and(|left| left > stage.short()), "{shown:?}");
    }
}

/// To all clients, with the time that it told, for as long as the key is closed. A blocked claim is told of
/// no other holder.
async fn the_holder_that_closed_a_key_is_shown(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let claim = stage.claim(Mode::Exclusive);
    let closes = claim.clone().with(|it| {
        it.holder.text = "web-2 (pid 7)".into();
        it.holder.closed_at = Some(Duration::from_millis(1_790_000_000_123));
    });
    stage.granted(&a, &closes, "the key is free").await;
    assert_eq!(a.show(&claim.key).await.closed_by, None);
    let left = a.backend.release(&closes, Linger::For(stage.short() * 100)).await;
    left.expect("the backend can linger");
    let blocked = b.blocked(&stage.passer(Mode::Exclusive), "the key lingers").await;
    assert_eq!(blocked.cause, Cause::Linger);
    assert!(blocked.holder.is_none_or(|holder| holder == closes.holder));
    for client in [&a, &b] {
        let shown = client.show(&claim.key).await;
        assert_eq!(shown.closed_by.as_ref(), Some(&closes.holder), "{shown:?}");
        assert_eq!((shown.holders.len(), shown.linger.is_some()), (0, true), "{shown:?}");
    }
    let opened = b.backend.release(&claim, Linger::End).await.expect("the backend can linger");
    assert_eq!(opened, Released::Yes);
    stage.soon(&a, &claim.key, "it was opened", |seen| seen.closed_by.is_none()).await;
    // Another one closes it, and says nothing of when.
    let next = stage.claim(Mode::Exclusive).with(|it| it.holder = "web-3".into());
    stage.granted(&b, &next, "the key is open").await;
    let left = b.backend.release(&next, Linger::For(stage.short() * 100)).await;
    left.expect("the backend can linger");
    assert_eq!(a.show(&claim.key).await.closed_by, Some("web-3".into()));
}

/// A claim that is looked at all the time ends when it would have ended.
async fn inspection_prolongs_nothing(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let sent_at = stage.now();
    let claim = stage.short_claim(Mode::Exclusive);
    let ttl = stage.granted(&a, &claim, "the key is free").await.ttl;
    let answered_at = stage.now();
    let all = Query::Prefix("".into());
    for _ in 0..8 {
        stage.sleep(ttl / 10).await;
        for client in [&a, &b] {
            client.show(&claim.key).await;
            client.backend.inspect(&all).await.expect("an inspection without fault");
        }
    }
    let (first, last) = (sent_at.plus(ttl), answered_at.plus(ttl));
    stage.free_between(&b, Mode::Exclusive, first, last, "looked at, not renewed").await;
    assert!(a.show(&claim.key).await.is_free());
}

/// Waiters sleep on while others look, and tokens do not move.
async fn inspection_wakes_no_waiter(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let (held, waiter) = (stage.claim(Mode::Exclusive), stage.claim(Mode::Exclusive));
    let token = stage.granted(&a, &held, "the key is free").await.token;
    let blocked = b.blocked(&waiter, "the key is held").await;
    let mut wait = b.backend.wait(&waiter, &blocked);
    let (start, mut ends) = (stage.now(), 0);
    for _ in 0..30 {
        a.show(&held.key).await;
        if stage.within(Duration::from_millis(5), Pin::as_mut(&mut wait)).await.is_some() {
            ends += 1;
            b.blocked(&waiter, "the key is held").await;
            wait = b.backend.wait(&waiter, &blocked);
        }
    }
    // A store without notifications ends a wait now and then by itself, so a slow machine sees more ends.
    let by_itself = stage.now().since(start).as_millis() / 100;
    assert!(ends <= 3 + by_itself, "30 inspections ended the wait {ends} times");
    drop(wait);
    let again = stage.granted(&a, &held, "it is held").await;
    assert_eq!(again.token, token);
    a.released(&held, "it was held").await;
    let grant = stage.granted(&b, &waiter, "it is its turn").await;
    assert!(grant.token > token);
}

/// To look at a key that nobody has used does not make it one.
async fn inspection_makes_no_key(stage: Stage) {
    let a = stage.client().await;
    for name in ["never used", "never/used", "../never"] {
        let key = Key::new(name).expect("a good key");
        assert!(a.show(&key).await.is_free());
        assert_eq!(a.show(&key).await.shape, None);
    }
    let all = Query::Prefix("".into());
    assert!(a.backend.inspect(&all).await.expect("an inspection without fault").is_empty());
}
