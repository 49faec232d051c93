//! Changes of the limit of permits, and the key that keeps it.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::time::Duration;

use crate::common::*;
use latchwork_services::{EtcdOptions, EtcdServer, etcdctl};
use latchwork_store::{
    Backend, BackendErrorKind, Claim, Mode, Order, Released, Resize, Resized, Wake,
};

const LIMIT: &str = "k%limit";

fn server() -> EtcdServer {
    EtcdServer::start(&EtcdOptions::new()).unwrap()
}

fn permits(take: u32, of: u32) -> Claim {
    claim("k").with(|it| (it.mode, it.ttl) = (Mode::Permits { take, of }, 30 * SEC))
}

async fn resize(client: &Bare, of: u32) -> Resized {
    answered(|| async { client.resize(&permits(1, of)).await }).await
}

/// All keys that the lock has.
fn all_keys(server: &EtcdServer) -> Vec<String> {
    let keys = etcdctl(server.port(), &["get", "k", "--prefix", "--keys-only"]).unwrap();
    keys.split_whitespace().map(str::to_owned).collect()
}

/// Waits until the lock has so many keys.
async fn until_keys(server: &EtcdServer, count: usize) {
    for _ in 0..1_000 {
        if all_keys(server).len() == count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{:?} stay", all_keys(server));
}

fn kept(server: &EtcdServer) -> String {
    etcdctl(server.port(), &["get", LIMIT, "--print-value-only"]).unwrap().trim().into()
}

#[test]
fn the_last_claim_of_a_changed_limit_deletes_it() {
    let server = server();
    run(async {
        let (a, b) = (bare(&server.url()).await, bare(&server.url()).await);
        let held = [(); 3].map(|()| permits(1, 3));
        for claim in &held {
            a.granted(claim).await;
        }
        let waiter = permits(1, 3);
        b.blocked(&waiter).await;
        assert_eq!(resize(&b, 2).await, Resized::Yes { from: 3, to: 2, held: 3 });
        let written = kept(&server);
        assert_eq!(resize(&a, 2).await, Resized::Yes { from: 2, to: 2, held: 3 });
        assert_eq!(kept(&server), written, "the limit that it has already is not written again");
        let later = permits(1, 2);
        b.blocked(&later).await;
        for claim in &held {
            assert_eq!(a.released(claim).await, Released::Yes);
        }
        assert_eq!(all_keys(&server).len(), 3, "a waiter has the changed limit");
        b.granted(&waiter).await;
        b.released(&waiter).await;
        assert_eq!(all_keys(&server).len(), 1, "the claim that is left came after the change");
        b.granted(&later).await;
        b.released(&later).await;
        assert_eq!(all_keys(&server), Vec::<String>::new());
    });
}

/// H382: all clients have died, and nobody deletes the limit. The next claim has its own limit, and deletes it.
#[test]
fn h382_a_limit_of_dead_clients_counts_for_nobody() {
    let server = server();
    run(async {
        let (a, b) = (bare(&server.url()).await, bare(&server.url()).await);
        for waits in [true, false] {
            a.granted(&permits(3, 3)).await;
            resize(&b, 1).await;
            etcdctl(server.port(), &["del", "k/", "--prefix"]).unwrap();
            assert_eq!(all_keys(&server), [LIMIT]);
            assert_eq!(resize(&b, 5).await, Resized::Unused);
            let next = permits(2, 4).with(|it| it.waits = waits);
            b.granted(&next).await;
            until_keys(&server, 1).await;
            let follower = permits(1, 9).with(|it| it.resize = Resize::Follow);
            a.granted(&follower).await;
            a.blocked(&permits(2, 4).with(|it| it.waits = false)).await;
            for (client, claim) in [(&a, &follower), (&b, &next)] {
                client.released(claim).await;
            }
            assert_eq!(all_keys(&server), Vec::<String>::new());
        }
    });
}

/// H383: a waiter is the next one, and the limit falls below what it takes. The end of the place ahead is no
/// grant then, whichever of the two a watch tells first.
#[test]
fn h383_a_hand_off_does_not_exceed_a_lowered_limit() {
    let server = server();
    run(async {
        let (a, b) = (bare(&server.url()).await, bare(&server.url()).await);
        for round in 0..10 {
            let (held, waiter) = (permits(3, 3), permits(2, 3));
            a.granted(&held).await;
            let blocked = b.blocked(&waiter).await;
            let waits = async { b.wait(&waiter, &blocked).await.unwrap() };
            let changes = async {
                assert_eq!(resize(&a, 1).await, Resized::Yes { from: 3, to: 1, held: 3 });
                a.released(&held).await;
            };
            let (woken, ()) = tokio::join!(waits, changes);
            assert!(matches!(woken, Wake::Look), "round {round}: {woken:?}");
            b.blocked(&waiter).await;
            assert!(!b.held(&waiter).await);
            b.released(&waiter).await;
        }
    });
}

/// H385: the client of a change has died between its steps. No holder is evicted, and no waiter is granted more
/// than the new limit, also after the next change. Views count a waiter as a holder.
#[test]
fn h385_a_change_that_ends_half_way_lowers_the_limit() {
    let server = server();
    run(async {
        let (a, b) = (bare(&server.url()).await, bare(&server.url()).await);
        let held = [(); 4].map(|()| permits(1, 4));
        for claim in &held {
            a.granted(claim).await;
        }
        let waiters = [(); 2].map(|()| permits(1, 4));
        let mut answers = Vec::new();
        for waiter in &waiters {
            answers.push(b.blocked(waiter).await);
        }
        let woken = async { b.wait(&waiters[0], &answers[0]).await.unwrap() };
        let dies = async { drop(etcdctl(server.port(), &["put", LIMIT, "lw1 2 - 0 "]).unwrap()) };
        assert!(matches!(tokio::join!(woken, dies).0, Wake::Look));
        for claim in &held {
            a.granted(claim).await;
            assert!(a.held(claim).await && b.held(claim).await);
        }
        for claim in &held[..2] {
            a.released(claim).await;
            b.blocked(&waiters[0]).await;
        }
        a.released(&held[2]).await;
        b.granted(&waiters[0]).await;
        b.blocked(&waiters[1]).await;
        assert_eq!(resize(&a, 2).await, Resized::Yes { from: 2, to: 2, held: 3 });
        b.blocked(&waiters[1]).await;
        assert_eq!(resize(&a, 3).await, Resized::Yes { from: 2, to: 3, held: 3 });
        b.granted(&waiters[1]).await;
    });
}

/// A claim that is far behind compares the limit, too.
#[test]
fn a_waiter_far_behind_is_reached_by_a_raised_limit() {
    let server = server();
    run(async {
        let (a, b) = (bare(&server.url()).await, bare(&server.url()).await);
        a.granted(&permits(1, 1)).await;
        let waiters: Vec<_> = (0..80).map(|_| permits(1, 1)).collect();
        for waiter in &waiters {
            b.blocked(waiter).await;
        }
        let last = b.blocked(&waiters[79]).await;
        assert_eq!(last.ahead, Some(79));
        let woken = async { b.wait(&waiters[79], &last).await.unwrap() };
        let raised = async { resize(&a, 100).await };
        let both = tokio::time::timeout(20 * SEC, async { tokio::join!(woken, raised) });
        let (woken, raised) = both.await.expect("the change wakes the waiter");
        assert_eq!(raised, Resized::Yes { from: 1, to: 100, held: 1 });
        assert!(matches!(woken, Wake::Look), "{woken:?}");
        b.granted(&waiters[79]).await;
        b.granted(&waiters[0]).await;
        let barging = permits(1, 100).with(|it| it.order = Order::Barging);
        a.granted(&barging).await;
    });
}

#[test]
fn a_limit_of_a_mutex_is_a_mismatch() {
    let server = server();
    run(async {
        let client = bare(&server.url()).await;
        assert_eq!(resize(&client, 3).await, Resized::Unused);
        let _other = crate::interop::Etcdctl::lock(&server, "k", &["sleep", "60"]);
        until(client.locks(), "k", |shown| shown.holders.len() == 1).await;
        let error = client.resize(&permits(1, 3)).await.unwrap_err();
        assert_eq!(error.kind, BackendErrorKind::Mismatch);
        assert_eq!(all_keys(&server).len(), 1, "it leaves nothing");
    });
}
