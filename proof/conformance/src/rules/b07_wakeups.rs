//! B7: with `push`, `wait` returns soon after this claim may be admitted, also when that happened
//! between the try and the wait; never at once again and again.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use latchwork_store::{Attempt, Blocked, Claim, Linger, Mode, Order, Released, Stamp, Wake};
use tokio::task::JoinSet;

use crate::case::{Case, case};
use crate::harness::Client;
use crate::stage::{Stage, drop_after};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_release_between_try_and_wait_is_noticed, |e| e.push),
        case!(a_release_during_the_wait_ends_it, |e| e.push),
        case!(a_release_while_subscribing_is_noticed, |e| e.push),
        case!(a_barging_waiter_is_woken, |e| e.push),
        case!(opening_a_closed_key_wakes_its_waiter, |e| e.push && e.linger),
        case!(a_withdrawal_admits_the_next_waiter, |e| e.push && e.fifo),
        case!(a_withdrawal_ahead_moves_the_queue, |e| e.push && e.fifo && e.shared),
        case!(all_readers_are_woken, |e| e.push && e.shared),
        case!(as_many_permits_are_woken_as_left, |e| e.push && e.permits),
        case!(an_expired_holder_is_followed),
        case!(no_wait_spins_while_nothing_changes),
        case!(many_waiters_are_served_one_at_a_time, |e| e.push),
    ]
}

/// Expects that a wait ends soon, by the store and not by a timer of ours.
pub(super) async fn woken(stage: &Stage, client: &Client, claim: &Claim, blocked: &Blocked, why: &str) {
    let start = stage.now();
    let wait = client.backend.wait(claim, blocked);
    ended(stage, wait, claim, start, why).await;
}

async fn ended(
    stage: &Stage,
    wait: impl Future<Output = Result<Wake, latchwork_store::BackendError>>,
    claim: &Claim,
    start: latchwork_store::Moment,
    why: &str,
) {
    // Longer than allowed, far shorter than any ttl here: the bound is judged afterwards, when it
    // is known how long the machine stood still.
    let wake = stage.within(claim.ttl / 4, wait).await;
    let took = stage.now().since(start);
    let wake = wake.unwrap_or_else(|| panic!("{why}: not woken within {took:?}"));
    assert!(took <= stage.lateness(start), "{why}: woken only after {took:?}");
    if let Wake::Admitted { stamp, .. } = wake.expect("a wait without fault") {
        assert_eq!(stamp, claim.stamp, "{why}: a pushed grant echoes the stamp of its try");
    }
}

/// A release that falls between the try and the wait is not missed.
async fn a_release_between_try_and_wait_is_noticed(stage: Stage) {
    for same_client in [true, false] {
        for mode in stage.filling_modes() {
            let stage = stage.again().await;
            let (a, b) = (stage.client().await, stage.client().await);
            let rival = if mode == Mode::Read { Mode::Write } else { mode };
            let (held, waiter) = (stage.claim(mode), stage.claim(rival));
            let client = if same_client { &a } else { &b };
            stage.granted(&a, &held, "the key is free").await;
            let blocked = client.blocked(&waiter, "the key is held").await;
            a.released(&held, "it was held").await;
            woken(&stage, client, &waiter, &blocked, "released before the wait").await;
            stage.granted(client, &waiter, "the key is free").await;
            client.released(&waiter, "it was held").await;
        }
    }
}

/// A waiter that came while the key was held, and one that came after it was closed.
async fn opening_a_closed_key_wakes_its_waiter(stage: Stage) {
    for comes_early in [true, false] {
        for order in [Order::Fifo, Order::Barging] {
            let stage = stage.again().await;
            let (a, b) = (stage.client().await, stage.client().await);
            let held = stage.claim(Mode::Exclusive);
            let waiter = stage.claim(Mode::Exclusive).with(|it| it.order = order);
            let token = stage.granted(&a, &held, "the key is free").await.token;
            if comes_early {
                b.blocked(&waiter, "the key is held").await;
            }
            let linger = Linger::For(stage.short() * 100);
            let released = a.backend.release(&held, linger).await.expect("no fault");
            assert_eq!(released, Released::Yes);
            // It may have been told to look at another time, which is over by now.
            let (mut blocked, mut looks) = (b.blocked(&waiter, "the key lingers").await, 0);
            let wait = loop {
                let mut wait = b.backend.wait(&waiter, &blocked);
                let pause = Duration::from_millis(50);
                if stage.within(pause, Pin::as_mut(&mut wait)).await.is_none() {
                    break wait;
                }
                drop(wait);
                blocked = b.blocked(&waiter, "the key lingers").await;
                looks += 1;
                assert!(looks < 10, "{order:?}: woken all the time while the key is closed");
            };
            let request = stage.passer(Mode::Exclusive);
            let opened = a.backend.release(&request, Linger::End).await.expect("no fault");
            assert_eq!(opened, Released::Yes);
            ended(&stage, wait, &waiter, stage.now(), "the key was opened").await;
            let next = stage.granted(&b, &waiter, "the key was opened").await;
            assert!(next.token > token, "{} after {token}", next.token);
            b.released(&waiter, "it was held").await;
        }
    }
}

/// A release ends a wait that has begun.
async fn a_release_during_the_wait_ends_it(stage: Stage) {
    for same_client in [true, false] {
        let (a, b) = (stage.client().await, stage.client().await);
        let (held, waiter) = (stage.claim(Mode::Exclusive), stage.claim(Mode::Exclusive));
        let client = if same_client { &a } else { &b };
        stage.granted(&a, &held, "the key is free").await;
        let blocked = client.blocked(&waiter, "the key is held").await;
        let mut wait = client.backend.wait(&waiter, &blocked);
        let early = stage.within(Duration::from_millis(50), Pin::as_mut(&mut wait)).await;
        a.released(&held, "it was held").await;
        let start = stage.now();
        if early.is_none() {
            ended(&stage, wait, &waiter, start, "released during the wait").await;
        }
        stage.granted(client, &waiter, "the key is free").await;
        client.released(&waiter, "it was held").await;
    }
}

/// A release that falls anywhere into the beginning of a wait is not missed.
async fn a_release_while_subscribing_is_noticed(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    for polls in 1..12 {
        let (held, waiter) = (stage.claim(Mode::Exclusive), stage.claim(Mode::Exclusive));
        stage.granted(&a, &held, "the key is free").await;
        let blocked = b.blocked(&waiter, "the key is held").await;
        let mut wait = b.backend.wait(&waiter, &blocked);
        let polled = drop_after(polls, Pin::as_mut(&mut wait));
        let settled = stage.within(Duration::from_millis(10), polled).await;
        a.released(&held, "it was held").await;
        let start = stage.now();
        if !matches!(settled, Some(Some(_))) {
            ended(&stage, wait, &waiter, start, &format!("released after {polls} polls")).await;
        }
        stage.granted(&b, &waiter, "the key is free").await;
        b.released(&waiter, "it was held").await;
    }
}

/// A barging claim that waits has no place, but it is woken.
async fn a_barging_waiter_is_woken(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let held = stage.claim(Mode::Exclusive);
    let waiter = stage.claim(Mode::Exclusive).with(|it| it.order = Order::Barging);
    stage.granted(&a, &held, "the key is free").await;
    let blocked = b.blocked(&waiter, "the key is held").await;
    a.released(&held, "it was held").await;
    woken(&stage, &b, &waiter, &blocked, "the key is free").await;
    stage.granted(&b, &waiter, "the key is free").await;
}

/// When the one whose turn it is withdraws, the next is woken: a wake-up dies with nobody.
async fn a_withdrawal_admits_the_next_waiter(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let [held, first, second] = [(); 3].map(|()| stage.claim(Mode::Exclusive));
    stage.granted(&a, &held, "the key is free").await;
    let told = a.blocked(&first, "the key is held").await;
    let blocked = b.blocked(&second, "the key is held").await;
    a.released(&held, "it was held").await;
    woken(&stage, &a, &first, &told, "it is its turn").await;
    a.released(&first, "it waited").await;
    woken(&stage, &b, &second, &blocked, "the one ahead has withdrawn").await;
    stage.granted(&b, &second, "it is its turn").await;
}

/// A reader behind a waiting writer is woken when that writer withdraws.
async fn a_withdrawal_ahead_moves_the_queue(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let (reader, writer) = (stage.claim(Mode::Read), stage.claim(Mode::Write));
    let later = stage.claim(Mode::Read);
    stage.granted(&a, &reader, "the key is free").await;
    a.blocked(&writer, "somebody reads").await;
    let blocked = b.blocked(&later, "a writer waits").await;
    a.released(&writer, "it waited").await;
    woken(&stage, &b, &later, &blocked, "the writer has withdrawn").await;
    stage.granted(&b, &later, "readers share").await;
}

/// When a writer leaves, every waiting reader is woken, not only the first.
async fn all_readers_are_woken(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let writer = stage.claim(Mode::Write);
    stage.granted(&a, &writer, "the key is free").await;
    let readers = [(); 5].map(|()| stage.claim(Mode::Read));
    let mut answers = Vec::new();
    for reader in &readers {
        answers.push(b.blocked(reader, "somebody writes").await);
    }
    a.released(&writer, "it was held").await;
    serve(&stage, &b, &readers, answers).await;
}

/// When permits come back, as many are woken as can be served.
async fn as_many_permits_are_woken_as_left(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let all = stage.claim(Mode::Permits { take: 3, of: 3 });
    stage.granted(&a, &all, "the key is free").await;
    let waiters = [(); 3].map(|()| stage.claim(Mode::Permits { take: 1, of: 3 }));
    let mut answers = Vec::new();
    for waiter in &waiters {
        answers.push(b.blocked(waiter, "none is free").await);
    }
    a.released(&all, "it was held").await;
    serve(&stage, &b, &waiters, answers).await;
}

/// Waits and looks for each of several who can all be served now. Who is woken only by the one
/// before it may be told again.
async fn serve(stage: &Stage, client: &Client, waiters: &[Claim], answers: Vec<Blocked>) {
    for (waiter, mut blocked) in waiters.iter().zip(answers) {
        for look in 0.. {
            woken(stage, client, waiter, &blocked, "it can be served").await;
            match client.attempt(waiter).await.expect("contention is no error") {
                Attempt::Granted(_) => break,
                Attempt::Blocked(again) => blocked = again,
            }
            assert!(look < 3, "woken again and again, and never served: {blocked:?}");
        }
    }
}

/// When a holder runs out, a waiter gets the key soon: by being woken, by `retry_after`, or at the
/// latest when core looks by itself.
async fn an_expired_holder_is_followed(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let held = stage.short_claim(Mode::Exclusive);
    stage.granted(&a, &held, "the key is free").await;
    let end = stage.now().plus(held.ttl);
    let waiter = stage.claim(Mode::Exclusive);
    let blocked = b.blocked(&waiter, "the key is held").await;
    let pace = match blocked.retry_after {
        Some(after) => {
            let most = held.ttl + stage.lateness(end);
            assert!(after <= most, "told to look in {after:?}, the holder ends in {:?}", held.ttl);
            waiter.clone()
        }
        None => waiter.clone().with(|it| it.ttl = stage.short()),
    };
    stage.acquire(&b, &pace).await;
    let third = if blocked.retry_after.is_none() { pace.ttl / 3 } else { Duration::ZERO };
    let late = stage.now().since(end);
    assert!(late <= third + stage.lateness(end) * 2, "{late:?} after the end of the holder");
}

/// While nothing changes a wait does not end again and again, and renewals wake nobody.
async fn no_wait_spins_while_nothing_changes(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let held = stage.claim(Mode::Exclusive);
    stage.granted(&a, &held, "the key is free").await;
    for order in [Order::Fifo, Order::Barging] {
        let waiter = stage.claim(Mode::Exclusive).with(|it| it.order = order);
        let mut blocked = b.blocked(&waiter, "the key is held").await;
        let start = stage.now();
        let length = Duration::from_secs(1);
        let mut ends = 0;
        while stage.now().since(start) < length {
            let left = length.saturating_sub(stage.now().since(start));
            let wait = b.backend.wait(&waiter, &blocked);
            if stage.within((left / 2).max(Duration::from_millis(1)), wait).await.is_some() {
                ends += 1;
                // A store that cannot push may look every 100 ms.
                assert!(ends <= 12, "{order:?}: the wait ended {ends} times within {length:?}");
            }
            a.held(&held, "nobody touched it").await;
            blocked = b.blocked(&waiter, "the key is held").await;
        }
        b.release(&waiter).await;
    }
}

/// Of 64 who wait in line, a release wakes the one whose turn it is, not all; all are served.
async fn many_waiters_are_served_one_at_a_time(stage: Stage) {
    const WAITERS: u32 = 64;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(Arc::new(stage.client().await));
    }
    let held = stage.claim(Mode::Exclusive);
    stage.granted(&clients[0], &held, "the key is free").await;
    let looks = Arc::new(AtomicU32::new(0));
    let served = Arc::new(AtomicU32::new(0));
    let mut tasks = JoinSet::new();
    for n in 0..WAITERS {
        let client = clients[n as usize % 4].clone();
        let mut waiter = stage.claim(Mode::Exclusive);
        let mut blocked = client.blocked(&waiter, "the key is held").await;
        let (io, looks, served) = (stage.io(), looks.clone(), served.clone());
        let fifo = stage.expected().fifo;
        tasks.spawn(async move {
            loop {
                let pace = if fifo { waiter.ttl / 3 } else { waiter.ttl / 100 };
                match io.within(pace, client.backend.wait(&waiter, &blocked)).await {
                    Some(_) => drop(looks.fetch_add(1, Ordering::SeqCst)),
                    None => assert!(!fifo, "nobody woke waiter {n} within {pace:?}"),
                }
                if !fifo {
                    let most = Duration::from_millis(20);
                    io.sleep(latchwork_store::random_between(Duration::ZERO, most)).await;
                }
                waiter.stamp = Stamp::new(io.now());
                match client.attempt(&waiter).await.expect("contention is no error") {
                    Attempt::Blocked(again) => blocked = again,
                    Attempt::Granted(_) => break,
                }
            }
            let turn = served.fetch_add(1, Ordering::SeqCst);
            assert!(!fifo || turn == n, "waiter {n} was served as number {turn}");
            io.sleep(Duration::from_millis(1)).await; // those woken in vain come now
            client.released(&waiter, "it was held").await;
        });
    }
    stage.settle().await;
    clients[0].released(&held, "it was held").await;
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            std::panic::resume_unwind(error.into_panic());
        }
    }
    assert_eq!(served.load(Ordering::SeqCst), WAITERS);
    let looks = looks.load(Ordering::SeqCst);
    // A herd wakes everybody for each release: 2,080 in all. One for the turn and one for each
    // change ahead is 128.
    let most = if stage.expected().fifo { 3 * WAITERS } else { WAITERS * (WAITERS + 1) };
    assert!(looks <= most, "{looks} wake-ups for {WAITERS} waiters");
}
