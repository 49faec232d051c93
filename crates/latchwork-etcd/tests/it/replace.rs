//! Upgrades and downgrades among waiters of all kinds.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::time::Duration;

use crate::common::*;
use crate::interop::Etcdctl;
use latchwork_services::{Direction, EtcdOptions, EtcdServer, Proxy, etcdctl};
use latchwork_store::{Backend, Cause, Claim, ErrorKind, Mode, Wake};

fn server() -> EtcdServer {
    EtcdServer::start(&EtcdOptions::new()).unwrap()
}

fn with_mode(mode: Mode) -> Claim {
    claim("k").with(|it| (it.mode, it.ttl) = (mode, 30 * SEC))
}

fn replacing(mode: Mode, hold: &Claim) -> Claim {
    with_mode(mode).with(|it| it.beside = Some(hold.id))
}

#[test]
fn an_upgrade_alone_is_one_transaction_and_so_is_a_downgrade() {
    let server = server();
    run(async {
        let client = bare(&server.url()).await;
        let mut hold = with_mode(Mode::Read);
        client.granted(&hold).await;
        for waits in [true, false] {
            for mode in [Mode::Write, Mode::Read] {
                let next = replacing(mode, &hold).with(|it| it.waits = waits);
                let before = Requests::of(&server);
                client.granted(&next).await;
                let asked = Requests::of(&server).since(before);
                assert_eq!((asked.transactions, asked.reads), (1, 0), "{mode:?} {waits}");
                client.released(&hold).await;
                hold = next;
            }
        }
    });
}

/// H370: `etcdctl lock` waits for a hold. A claim that goes ahead of it would have to remove its place, and Go's
/// client takes no other one.
#[test]
fn h370_a_go_client_that_waits_is_not_overtaken() {
    let server = server();
    run(async {
        let client = bare(&server.url()).await;
        for (held, wanted) in [(Mode::Read, Mode::Write), (Mode::Write, Mode::Read)] {
            let hold = with_mode(held);
            client.granted(&hold).await;
            let mut other = Etcdctl::lock(&server, "k", &["echo", "mine"]);
            until(client.locks(), "k", |shown| shown.waiters.len() == 1).await;
            for waits in [true, false] {
                let next = replacing(wanted, &hold).with(|it| it.waits = waits);
                assert_eq!(client.blocked(&next).await.cause, Cause::Foreign, "{held:?}");
                assert_eq!(keys_of(&server, "k").len(), 2, "it leaves nothing");
            }
            assert!(client.held(&hold).await);
            client.released(&hold).await;
            assert_eq!(other.line(), "mine");
            assert!(other.0.wait().unwrap().success());
        }
        let locks = client.locks();
        let mut guard = locks.rwlock("k").read().acquire().await.unwrap();
        let _other = Etcdctl::lock(&server, "k", &["echo", "mine"]);
        until(locks, "k", |shown| shown.waiters.len() == 1).await;
        for error in [guard.upgrade().await.unwrap_err(), guard.try_upgrade().await.unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::UpgradeConflict, "{error}");
            assert!(error.to_string().contains("of another kind waits for this hold"), "{error}");
        }
        guard.ensure_held().unwrap();
        guard.release().await.unwrap();
    });
}

/// H371: an upgrade removes the place of a writer that waits, the hold ahead ends, and the watches tell both in any
/// order, as if one request had deleted them.
#[test]
fn h371_a_waiter_that_was_overtaken_holds_nothing() {
    let server = server();
    let proxy = Proxy::plain(server.port()).unwrap();
    run(async {
        let url = format!("etcd://127.0.0.1:{}", proxy.port());
        let (reader, writer) = (bare(&server.url()).await, bare(&url).await);
        for round in 0..20 {
            let (hold, waiter) = (with_mode(Mode::Read), with_mode(Mode::Write));
            reader.granted(&hold).await;
            let blocked = writer.blocked(&waiter).await;
            let waits = async { writer.wait(&waiter, &blocked).await.unwrap() };
            let ends = async {
                watches(&server, |watches| watches >= 2.0).await;
                // What the watches tell does not arrive at once.
                proxy.trickle(Direction::ToClient, Some((48, Duration::from_millis(3))));
                etcdctl(server.port(), &["del", "k/", "--prefix"]).unwrap();
            };
            let (woken, ()) = tokio::join!(waits, ends);
            assert!(matches!(woken, Wake::Look), "round {round}: {woken:?}");
            proxy.trickle(Direction::ToClient, None);
            writer.granted(&waiter).await;
            for (client, claim) in [(&writer, &waiter), (&reader, &hold)] {
                client.released(claim).await;
            }
        }
    });
}

/// The same by an upgrade: the waiter takes another place, and its turn comes after the upgrade's.
#[test]
fn an_overtaken_waiter_is_woken_and_queues_again() {
    let server = server();
    run(async {
        let (reader, writer) = (bare(&server.url()).await, bare(&server.url()).await);
        let (hold, waiter) = (with_mode(Mode::Read), with_mode(Mode::Write));
        reader.granted(&hold).await;
        let blocked = writer.blocked(&waiter).await;
        let write = replacing(Mode::Write, &hold);
        let waits = async { writer.wait(&waiter, &blocked).await.unwrap() };
        let (woken, _) = tokio::join!(waits, reader.granted(&write));
        assert!(matches!(woken, Wake::Look), "{woken:?}");
        let blocked = writer.blocked(&waiter).await;
        assert_eq!(keys_of(&server, "k").len(), 3);
        reader.released(&hold).await;
        let waits = async { writer.wait(&waiter, &blocked).await.unwrap() };
        let (_, _) = tokio::join!(waits, reader.released(&write));
        writer.granted(&waiter).await;
    });
}

/// H372: between the read of the queue and the removal of its waiters one of them becomes a holder, because the
/// hold has ended, or the writer ahead of a reader has given up.
#[test]
fn h372_a_waiter_that_holds_meanwhile_is_not_removed() {
    let server = server();
    let proxy = Proxy::plain(server.port()).unwrap();
    run(async {
        let slow = bare(&format!("etcd://127.0.0.1:{}", proxy.port())).await;
        let other = bare(&server.url()).await;
        for hold_ends in [true, false] {
            let [hold, reader] = [(); 2].map(|()| with_mode(Mode::Read));
            let writer = with_mode(Mode::Write);
            slow.granted(&hold).await;
            for waiter in [&writer, &reader] {
                other.blocked(waiter).await;
            }
            proxy.delay(Direction::ToServer, SEC / 2);
            let write = replacing(Mode::Write, &hold);
            let upgrades = slow.blocked(&write);
            let changes = async {
                while keys_of(&server, "k").len() < 4 {}
                let (leaves, holds) = match hold_ends {
                    true => (&hold, &writer),
                    false => (&writer, &reader),
                };
                other.released(leaves).await;
                other.granted(holds).await;
                holds
            };
            let (blocked, holds) = tokio::join!(upgrades, changes);
            let cause = if hold_ends { Cause::Gone } else { Cause::Held };
            assert_eq!(blocked.cause, cause);
            assert!(other.held(holds).await, "it is not removed");
            proxy.delay(Direction::ToServer, Duration::ZERO);
            for claim in [&write, &hold, &writer, &reader] {
                slow.released(claim).await;
            }
        }
    });
}

/// Waiters of which a transaction takes only some are removed in parts, and take other places.
#[test]
fn an_upgrade_overtakes_more_waiters_than_a_transaction_takes() {
    for (limit, waiters) in [("--max-txn-ops=128", 150), ("--max-txn-ops=5", 12)] {
        let server = EtcdServer::start(&EtcdOptions::new().arg(limit)).unwrap();
        run(async {
            let client = bare(&server.url()).await;
            let (hold, other) = (with_mode(Mode::Read), with_mode(Mode::Read));
            client.granted(&hold).await;
            client.granted(&other).await;
            let writers: Vec<_> = (0..waiters).map(|_| with_mode(Mode::Write)).collect();
            for writer in &writers {
                client.blocked(writer).await;
            }
            let write = replacing(Mode::Write, &hold);
            assert_eq!(
                client.blocked(&write.clone().with(|it| it.waits = false)).await.ahead,
                None
            );
            assert_eq!(keys_of(&server, "k").len(), waiters + 2, "a single try overtakes nobody");
            let blocked = client.blocked(&write).await;
            assert_eq!((blocked.ahead, blocked.cause), (Some(0), Cause::Held));
            assert_eq!(keys_of(&server, "k").len(), 3, "{limit}");
            let last = client.blocked(&writers[waiters - 1]).await;
            assert_eq!(last.ahead, Some(1), "the upgrade is ahead");
            client.released(&other).await;
            client.granted(&write).await;
            client.released(&hold).await;
            client.blocked(&writers[waiters - 1]).await;
            client.released(&write).await;
            client.granted(&writers[waiters - 1]).await;
        });
    }
}

/// A place that says it replaces a hold that is not there is any other place.
#[test]
fn an_upgrade_without_its_hold_is_overtaken() {
    let server = server();
    run(async {
        let client = bare(&server.url()).await;
        let [hold, other] = [(); 2].map(|()| with_mode(Mode::Read));
        client.granted(&hold).await;
        client.granted(&other).await;
        let silent = replacing(Mode::Write, &hold);
        client.blocked(&silent).await;
        etcdctl(server.port(), &["del", &keys_of(&server, "k")[0]]).unwrap();
        let write = replacing(Mode::Write, &other);
        client.granted(&write).await;
        assert_eq!(client.blocked(&silent).await.cause, Cause::Gone);
        assert_eq!(keys_of(&server, "k").len(), 2, "it leaves nothing");
    });
}
