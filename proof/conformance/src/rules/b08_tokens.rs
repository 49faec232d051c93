//! B8: if one grant on a key ended before another began, the later token is greater; none is used
//! twice.

use std::collections::HashSet;

use latchwork_store::{Attempt, BackendErrorKind, Fencing, Key, Mode, Resize};

use crate::case::{Case, case};
use crate::stage::Stage;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(tokens_grow_from_grant_to_grant, |e| e.fencing != Fencing::None),
        case!(tokens_grow_past_an_expired_holder, |e| e.fencing != Fencing::None),
        case!(tokens_grow_while_keys_come_and_go, |e| e.fencing != Fencing::None),
        case!(tokens_outlive_the_clients, |e| e.fencing != Fencing::None),
        case!(tokens_grow_past_waiters, |e| e.fencing != Fencing::None),
        case!(tokens_grow_past_a_smaller_limit, |e| e.fencing != Fencing::None
            && e.mixed_limits
            && e.fifo),
        case!(no_token_is_used_twice),
        case!(tokens_leave_room),
        case!(a_floor_lifts_the_token, |e| e.floor),
        case!(a_renewal_lifts_the_token_only_while_held, |e| e.floor),
        case!(an_unknown_floor_is_refused_clearly, |e| !e.floor),
    ]
}

/// Each grant has a greater token than the one before it, in any mode, by any client.
async fn tokens_grow_from_grant_to_grant(stage: Stage) {
    let clients = [stage.client().await, stage.client().await];
    let mut last = 0;
    for round in 0..20 {
        for mode in stage.filling_modes() {
            let client = &clients[round % 2];
            let claim = stage.claim(mode);
            let token = stage.granted(client, &claim, "the key is free").await.token;
            assert!(token > last, "{mode:?}: {token} after {last}");
            assert_eq!(client.held(&claim, "it is held").await.1, token);
            last = token;
            client.released(&claim, "it was held").await;
        }
    }
}

/// A holder that ran out is fenced off by its successor's token.
async fn tokens_grow_past_an_expired_holder(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let late = stage.short_claim(Mode::Exclusive);
    let old = stage.granted(&a, &late, "the key is free").await.token;
    let new = stage.acquire(&b, &stage.claim(Mode::Exclusive)).await.token;
    assert!(new > old, "{new} after {old}");
}

/// A key that was idle while others were used does not start again from the bottom.
async fn tokens_grow_while_keys_come_and_go(stage: Stage) {
    let a = stage.client().await;
    let first = stage.claim(Mode::Exclusive);
    let old = stage.granted(&a, &first, "the key is free").await.token;
    a.released(&first, "it was held").await;
    for n in 0..50 {
        let key = Key::new(format!("passing/{n}")).expect("a good key");
        let claim = stage.claim(Mode::Exclusive).with(|it| it.key = key);
        stage.granted(&a, &claim, "the key is free").await;
        a.released(&claim, "it was held").await;
    }
    let new = stage.granted(&a, &stage.claim(Mode::Exclusive), "the key is free").await.token;
    assert!(new > old, "{new} after {old}");
}

/// When all clients have ended and others come, tokens go on from where they were.
async fn tokens_outlive_the_clients(stage: Stage) {
    let mut last = 0;
    for _ in 0..3 {
        let client = stage.client().await;
        for _ in 0..3 {
            let claim = stage.claim(Mode::Exclusive);
            let token = stage.granted(&client, &claim, "the key is free").await.token;
            assert!(token > last, "{token} after {last}");
            last = token;
            client.released(&claim, "it was held").await;
        }
        client.kill();
        stage.settle().await;
    }
}

/// A grant to one who waited in line has a greater token than the one it waited for.
async fn tokens_grow_past_waiters(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let [first, second, third] = [(); 3].map(|()| stage.claim(Mode::Exclusive));
    let one = stage.granted(&a, &first, "the key is free").await.token;
    b.blocked(&second, "the key is held").await;
    a.blocked(&third, "the key is held").await;
    a.released(&first, "it was held").await;
    let two = stage.acquire(&b, &second).await.token;
    b.released(&second, "it was held").await;
    let three = stage.acquire(&a, &third).await.token;
    assert!(one < two && two < three, "{one}, {two}, {three}");
}

/// H506: a claim with a larger limit may be granted and end while one with a smaller limit waits. The
/// token of the waiter is greater.
async fn tokens_grow_past_a_smaller_limit(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let mine = |take, of| {
        stage.claim(Mode::Permits { take, of }).with(|it| it.resize = Resize::ToMine)
    };
    let (held, waiter, larger) = (mine(3, 3), mine(1, 3), mine(1, 5));
    let mut last = stage.granted(&a, &held, "the key is free").await.token;
    a.blocked(&waiter, "none of 3 is free").await;
    if let Attempt::Granted(grant) = b.attempt(&larger).await.unwrap() {
        last = grant.token;
    }
    b.release(&larger).await;
    a.released(&held, "it was held").await;
    let token = stage.granted(&a, &waiter, "3 of 3 are free").await.token;
    assert!(token > last, "{token} after {last}");
}

/// Claims that hold together have tokens of their own.
async fn no_token_is_used_twice(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let mut seen = HashSet::new();
    for mode in stage.filling_modes() {
        let mode = match mode {
            Mode::Permits { .. } => Mode::Permits { take: 1, of: 8 },
            other => other,
        };
        let together = if mode.is_alone() { 1 } else { 8 };
        let mut held = Vec::new();
        for n in 0..together {
            let claim = stage.claim(mode);
            let client = if n % 2 == 0 { &a } else { &b };
            let token = stage.granted(client, &claim, "they fit").await.token;
            assert!(seen.insert(token), "{mode:?}: token {token} was given before");
            held.push((claim, client));
        }
        for (claim, client) in held {
            client.released(&claim, "it was held").await;
        }
    }
}

/// Tokens stay below 2^53, so that core can make fencing tokens below 2^63 of them.
async fn tokens_leave_room(stage: Stage) {
    let a = stage.client().await;
    let token = stage.granted(&a, &stage.claim(Mode::Exclusive), "the key is free").await.token;
    assert!(token > 0 && token < 1 << 53, "{token}");
}

/// A claim with a floor gets a token that is not smaller, and later ones go on from there.
async fn a_floor_lifts_the_token(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let first = stage.claim(Mode::Exclusive);
    let old = stage.granted(&a, &first, "the key is free").await.token;
    a.released(&first, "it was held").await;
    let lifted = stage.claim(Mode::Exclusive).with(|it| it.floor = old + 1_000);
    let token = stage.granted(&a, &lifted, "the key is free").await.token;
    assert!(token >= old + 1_000, "{token} for a floor of {}", old + 1_000);
    a.released(&lifted, "it was held").await;
    let low = stage.claim(Mode::Exclusive).with(|it| it.floor = 1);
    let next = stage.granted(&b, &low, "the key is free").await.token;
    assert!(next > token, "{next} after {token}: a small floor asks for nothing");
}

/// A renewal with a floor lifts the token that the key remembers, but only for who holds it.
async fn a_renewal_lifts_the_token_only_while_held(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let claim = stage.claim(Mode::Exclusive);
    let old = stage.granted(&a, &claim, "the key is free").await.token;
    let raised = claim.clone().with(|it| it.floor = old + 500);
    assert_eq!(a.held(&raised, "it is held").await.1, old + 500);
    assert_eq!(a.held(&claim, "a smaller floor changes nothing").await.1, old + 500);
    a.released(&claim, "it was held").await;
    a.lost(&claim.with(|it| it.floor = old + 1_000_000_000), "it was released").await;
    let next = stage.granted(&b, &stage.claim(Mode::Exclusive), "the key is free").await.token;
    assert!(next > old + 500, "{next} after {}", old + 500);
    assert!(next < old + 1_000_000_000, "{next}: a lost claim has lifted the token");
}

/// A store that cannot remember a floor says so, and grants nothing.
async fn an_unknown_floor_is_refused_clearly(stage: Stage) {
    let a = stage.client().await;
    let claim = stage.claim(Mode::Exclusive).with(|it| it.floor = (1 << 53) - 2);
    let error = a.attempt(&claim).await.expect_err("the store cannot lift its tokens");
    assert_eq!(error.kind, BackendErrorKind::Unsupported, "{error:?}");
    assert!(a.show(&claim.key).await.is_free());
}
