//! Answers and messages that are lost, late, or come in the wrong order.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::*;
use latchwork::HoldState;
use latchwork_services::{Cut, Data, Direction, Loss, Lost as Swallowed, Proxy};
use latchwork_store::*;

const TTL: Duration = Duration::from_millis(1_200);

/// What runs with one answer lost: everything that locks send, by two clients.
async fn scenario(first: &Client, second: &Client, key: &str) {
    let inside = AtomicBool::new(false);
    let enter = |token: FencingToken, after: Option<FencingToken>| {
        assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
        assert!(after.is_none_or(|after| after < token), "tokens go back");
        token
    };
    let leave = || inside.store(false, Ordering::SeqCst);
    let guard = first.acquire(key).await;
    let token = enter(guard.token(), None);
    let next = waiter(second, key);
    until("the other waits", 5 * SEC, || second.story.is_waiting()).await;
    // A renewal comes in between.
    pause(TTL / 2).await;
    assert_eq!(guard.state(), HoldState::Held);
    leave();
    // An answer that is lost does not keep the lock.
    let _ = guard.release().await;
    let (guard, _) = within("the other is admitted", 4 * SEC, next).await.unwrap();
    enter(guard.token(), Some(token));
    assert_eq!(guard.state(), HoldState::Held);
    leave();
    drop(guard);
}

/// H19: for every answer of a whole session the same session with this one lost, by a cut.
#[test]
fn h19_no_lost_answer_leaves_an_orphan_or_a_false_hold() {
    run(async {
        let server = World::new();
        let mut tasks = Vec::new();
        for nth in 1..=12 {
            let proxy = Proxy::redis(server.server.port()).unwrap();
            tasks.push(tokio::spawn(async move {
                let url = proxy.url();
                let (first, second) =
                    (Client::warm(&url, TTL).await, Client::warm(&url, TTL).await);
                proxy.lose_answer(nth);
                scenario(&first, &second, &format!("k{nth}")).await;
                proxy.counts().lost
            }));
        }
        let mut lost = 0;
        for task in tasks {
            lost += task.await.unwrap();
        }
        assert!((5..12).contains(&lost), "{lost} of 12 sessions were disturbed");
        server.empties(3 * SEC).await;
    });
}

/// H18, H19: the first try took effect and its answer is lost: the same claim holds once, and one
/// release frees it.
#[test]
fn h18_a_free_try_with_a_lost_answer_holds_once() {
    run(async {
        let world = World::new();
        let client = Client::warm(&world.proxy.url(), 10 * SEC).await;
        world.proxy.lose_answer_of("EVALSHA", 1);
        let guard = client.acquire("k").await;
        assert_eq!(world.proxy.counts().lost, 1);
        assert_eq!(guard.state(), HoldState::Held);
        let value = world.text(&["GET", "k"]);
        let token = format!(":{}:", guard.token().grant_number());
        assert!(value.contains(&token), "{value} has no {token}");
        guard.release().await.unwrap();
        assert!(!world.is_held("k"));
    });
}

/// H19: the answer that says "in line" is lost: the place is kept, and it is one place.
#[test]
fn h19_a_full_try_with_a_lost_answer_keeps_one_place() {
    run(async {
        let world = World::new();
        let holder = Client::warm(&world.proxy.url(), 10 * SEC).await;
        let other = Client::warm(&world.proxy.url(), 10 * SEC).await;
        let guard = holder.acquire("k").await;
        // The first finds the key held, the second takes the place.
        world.proxy.lose_answer_of("EVALSHA", 2);
        let next = subscribed_waiter(&other, "k").await;
        assert_eq!(world.proxy.counts().lost, 1);
        assert_eq!(world.in_line("k"), 1);
        guard.release().await.unwrap();
        let (guard, _) = within("admitted", SLACK, next).await.unwrap();
        guard.release().await.unwrap();
        world.empties(SEC).await;
    });
}

/// H19: renewals take effect although half of their answers are lost.
#[test]
fn h19_lost_answers_of_renewals_lose_no_lock() {
    run(async {
        let world = World::new();
        let client = Client::warm(&world.proxy.url(), 1_500 * MS).await;
        let guard = client.acquire("k").await;
        for nth in [1, 3, 5, 7] {
            world.proxy.lose_answer_of("EVALSHA", nth);
        }
        let counts = world.proxy.counts_reach(|counts| counts.lost == 4).await;
        assert_eq!(guard.state(), HoldState::Held, "{counts:?}");
        let renewed = client.story.renewed();
        until("another renewal", 2 * SEC, || client.story.renewed() > renewed).await;
        assert_eq!(guard.state(), HoldState::Held);
        assert!(client.story.lost().is_empty());
    });
}

/// H19, H23: a release whose answer is lost has freed the key; its repetition frees nothing else.
#[test]
fn h23_a_repeated_release_does_not_end_the_next_hold() {
    run(async {
        let world = World::new();
        let client = Client::warm(&world.proxy.url(), 10 * SEC).await;
        let other = Client::warm(&world.server.url(), 10 * SEC).await;
        let guard = client.acquire("k").await;
        world.proxy.lose_answer_of("EVALSHA", 1);
        // Whether the repetition was answered in time is told; the key is free in any case.
        let _ = guard.release().await;
        let next = other.acquire("k").await;
        let value = world.text(&["GET", "k"]);
        let repeated = world.proxy.counts_reach(|counts| counts.answers > counts.lost + 20);
        let _ = tokio::time::timeout(300 * MS, repeated).await;
        assert_eq!(world.text(&["GET", "k"]), value);
        next.release().await.unwrap();
        world.empties(SEC).await;
    });
}

/// H22: a hold after a release has another name, so a late release of the first does not end it.
#[test]
fn h22_a_late_release_does_not_end_the_clients_next_hold() {
    run(async {
        let world = World::new();
        let client = Client::warm(&world.proxy.url(), 10 * SEC).await;
        let guard = client.acquire("k").await;
        let first = world.text(&["GET", "k"])[7..39].to_owned();
        world.proxy.lose_answer_of("EVALSHA", 1);
        drop(guard);
        let guard = client.acquire("k").await;
        assert_ne!(world.text(&["GET", "k"])[7..39], first);
        // The repetition has been answered when nothing is under way any more.
        until("all is answered", 5 * SEC, || {
            let counts = world.proxy.counts();
            counts.lost == 1 && counts.answers == counts.total()
        })
        .await;
        pause(100 * MS).await;
        guard.release().await.unwrap();
    });
}

/// H23: a claim releases and renews itself only, by the short script and by the whole one.
#[test]
fn h23_a_release_compares() {
    run(async {
        let world = World::new();
        let backend = connect(&world.server.url()).await;
        let (mine, other) = (claim("k", 10 * SEC), claim("k", 10 * SEC));
        granted(&backend, &mine).await;
        assert_eq!(release(&backend, &other).await, Released::NotHeld);
        assert_eq!(renew(&backend, &other).await.unwrap(), Renewal::Lost);
        let third = claim("k", 10 * SEC);
        blocked(&backend, &third).await;
        assert_eq!(release(&backend, &other).await, Released::NotHeld);
        assert!(matches!(renew(&backend, &mine).await, Ok(Renewal::Held { .. })));
        assert_eq!(release(&backend, &third).await, Released::Yes, "a place is given up");
        assert_eq!(release(&backend, &mine).await, Released::Yes);
        // What a stranger has taken is left alone.
        world.ask(&["SET", "k", "a stranger", "PX", "5000"]);
        assert_eq!(release(&backend, &mine).await, Released::NotHeld);
        assert_eq!(renew(&backend, &mine).await.unwrap(), Renewal::Lost);
        assert_eq!(world.text(&["GET", "k"]), "a stranger");
    });
}

/// H27: the confirmation of the subscription is lost: the waiter is admitted all the same.
#[test]
fn h27_a_lost_subscription_does_not_lose_the_waiter() {
    run(async {
        let world = World::new();
        let holder = Client::warm(&world.server.url(), 10 * SEC).await;
        let other = Client::warm(&world.proxy.url(), 10 * SEC).await;
        let guard = holder.acquire("k").await;
        world.proxy.lose_answer_of("SUBSCRIBE", 1);
        let next = waiter(&other, "k");
        world.line_is("k", 1).await;
        until("it subscribes again", 5 * SEC, || world.proxy.counts()["SUBSCRIBE"] >= 2).await;
        guard.release().await.unwrap();
        let _guard = within("admitted", SLACK, next).await.unwrap();
        assert_eq!(world.proxy.counts().lost, 1);
    });
}

/// H27: every message is lost. The waiter looks by itself: it finds its own grant, which it keeps.
#[test]
fn h27_a_waiter_polls_when_its_messages_are_lost() {
    run(async {
        let world = World::new();
        let ttl = 3 * SEC;
        let holder = Client::warm(&world.server.url(), ttl).await;
        let other = Client::warm(&world.proxy.url(), ttl).await;
        world.proxy.lose_pushes(true);
        let guard = holder.acquire("k").await;
        let next = waiter(&other, "k");
        until("it waits for a message", 5 * SEC, || other.story.waiting() >= 2).await;
        guard.release().await.unwrap();
        let released = Instant::now();
        let (guard, at) = within("admitted", ttl, next).await.unwrap();
        assert!(world.proxy.counts().lost >= 1, "a message was sent and lost");
        let took = at - released;
        in_time(took, ttl / 3 + SLACK);
        assert_eq!(guard.state(), HoldState::Held);
        guard.release().await.unwrap();
        world.empties(SEC).await;
    });
}

/// D3: a push that arrives late counts from when the server made it, not from its arrival.
#[test]
fn a_late_push_counts_from_when_it_was_made() {
    run(async {
        let world = World::new();
        let holder = Client::warm(&world.server.url(), 10 * SEC).await;
        let other = Client::warm(&world.proxy.url(), 10 * SEC).await;
        let guard = holder.acquire("k").await;
        let next = waiter(&other, "k");
        until("it waits for a message", 5 * SEC, || other.story.waiting() >= 2).await;
        // Its first renewal is due after a third of the probation.
        world.proxy.delay(Direction::ToClient, 400 * MS);
        guard.release().await.unwrap();
        let released = io().now();
        let (guard, _) = within("admitted", SLACK, next).await.unwrap();
        let arrived = io().now();
        assert!(arrived.since(released) >= 300 * MS, "the message was not late");
        assert_eq!(other.story.renewed(), 0, "too slow to tell anything");
        assert!(guard.valid_until() <= released.plus(PROBATION));
    });
}

/// The same for a push by the whole script, which readers leave by.
#[test]
fn a_push_after_a_reader_counts_from_the_try() {
    run(async {
        let world = World::new();
        let (reads, writes) =
            (connect(&world.server.url()).await, connect(&world.server.url()).await);
        let reader = with_mode("k", 10 * SEC, Mode::Read);
        let writer = with_mode("k", 10 * SEC, Mode::Write);
        granted(&reads, &reader).await;
        let tried = io().now();
        let blocked = in_line(&writes, &writer).await;
        assert_eq!(release(&reads, &reader).await, Released::Yes);
        let wake = writes.wait(&writer, &blocked).await.unwrap();
        let Wake::Admitted { since_try, .. } = wake else { panic!("{wake:?}") };
        let passed = io().now().since(tried);
        assert!(since_try <= passed, "{since_try:?} of {passed:?}");
    });
}

/// A push for a claim that nobody knows any more is given back at once.
#[test]
fn an_unwanted_push_is_given_back() {
    run(async {
        let world = World::new();
        let holder = connect(&world.server.url()).await;
        let gone = connect(&world.proxy.url()).await;
        let (held, left) = (claim("k", 10 * SEC), claim("k", 10 * SEC));
        granted(&holder, &held).await;
        in_line(&gone, &left).await;
        // It leaves, and the store never hears of it.
        let of = Some("EVALSHA".to_owned());
        world.proxy.lose(Loss { of, nth: 1, what: Swallowed::Command, cut: None });
        let unheard = tokio::time::timeout(100 * MS, gone.release(&left, Linger::None)).await;
        assert!(unheard.is_err());
        assert_eq!(world.in_line("k"), 1);
        assert_eq!(release(&holder, &held).await, Released::Yes);
        let took = world.empties(5 * SEC).await;
        assert!(took < stalls::widened(PROBATION / 2, took), "{took:?}");
    });
}

/// Polls a future so many times and drops it; `None` if it had not ended.
async fn polled<F: Future>(times: usize, future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut polls = 0;
    std::future::poll_fn(|cx| {
        polls += 1;
        match future.as_mut().poll(cx) {
            std::task::Poll::Ready(output) => std::task::Poll::Ready(Some(output)),
            std::task::Poll::Pending if polls == times => std::task::Poll::Ready(None),
            std::task::Poll::Pending => std::task::Poll::Pending,
        }
    })
    .await
}

/// H25: an acquire dropped at any poll leaves nothing.
#[test]
fn h25_an_acquire_dropped_at_any_poll_leaves_nothing() {
    run(async {
        let world = World::new();
        let client = Client::warm(&world.server.url(), 10 * SEC).await;
        for times in 1.. {
            assert!(times < 100);
            let ended = polled(times, client.mutex("free").acquire()).await.is_some();
            world.empties(SEC).await;
            if ended {
                break;
            }
        }
        let other = Client::warm(&world.server.url(), 10 * SEC).await;
        for times in 1.. {
            assert!(times < 100);
            let guard = other.acquire("k").await;
            let mutex = client.mutex("k");
            let wait = polled(times, mutex.acquire_within(10 * SEC));
            let free = async {
                pause(30 * MS).await;
                drop(guard);
            };
            let (ended, ()) = tokio::join!(wait, free);
            let ended = ended.map(drop).is_some();
            let third = within("the next is admitted", SEC, other.acquire("k")).await;
            drop(third);
            world.empties(SEC).await;
            if ended {
                break;
            }
        }
    });
}

/// H31: a server that has forgotten the scripts is sent them, within the same logical operation.
#[test]
fn h31_a_restart_between_operations_costs_one_command_more() {
    run(async {
        let mut world = World::new();
        let client = Client::warm(&world.proxy.url(), 10 * SEC).await;
        world.server.restart(Data::Empty).unwrap();
        until("the cut is noticed", 5 * SEC, || world.proxy.open_connections() == 0).await;
        world.proxy.reset_counts();
        let guard = client.acquire("k").await;
        let counts = world.proxy.reset_counts();
        // A new connection asks by two EVALs of its own what the server can do.
        assert_eq!((counts["EVALSHA"], counts["EVAL"]), (1, 1 + 2), "{counts:?}");
        guard.release().await.unwrap();
        let counts = world.proxy.reset_counts();
        assert_eq!((counts["EVALSHA"], counts["EVAL"]), (1, 1), "{counts:?}");
        assert!(!world.is_held("k"));
    });
}

/// H43: the server holds back writes for longer than a request may take: an error, and nothing
/// stays.
#[test]
fn h43_a_paused_server_keeps_no_abandoned_claim() {
    run(async {
        let world = World::new();
        let ttl = 10 * SEC;
        let client = Client::new(&world.proxy.url(), ttl).await;
        let locks = client.locks.clone().op_timeout(300 * MS);
        locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
        world.ask(&["CLIENT", "PAUSE", "1500", "WRITE"]);
        let error = locks.mutex("k").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert!(error.may_have_applied());
        let backend = connect(&world.server.url()).await;
        // When the pause is over the try takes effect, and its release right after it.
        let took = {
            let start = Instant::now();
            granted_soon(&backend, &claim("other", SEC)).await;
            start.elapsed()
        };
        assert!(took < stalls::widened(2 * SEC, took), "{took:?}");
        until("nothing holds it", SEC, || !world.is_held("k")).await;
        pause(200 * MS).await;
        assert!(!world.is_held("k"));
    });
}

async fn granted_soon(backend: &Arc<latchwork_redis::RedisBackend>, claim: &Claim) {
    within("the pause ends", 5 * SEC, granted(backend, claim)).await;
}

/// A command that never reached the server is tried again, under the same name.
#[test]
fn h19_a_lost_command_is_sent_by_the_next_try() {
    run(async {
        let world = World::new();
        let client = Client::warm(&world.proxy.url(), 4 * SEC).await;
        for cut in [None, Some(Cut::Finish)] {
            // With a cut or without: the request then has its time limit.
            let of = Some("EVALSHA".to_owned());
            world.proxy.lose(Loss { of, nth: 1, what: Swallowed::Command, cut });
            let guard = client.acquire("k").await;
            guard.release().await.unwrap();
        }
        assert_eq!(world.proxy.counts().lost, 2);
        world.empties(SEC).await;
    });
}
