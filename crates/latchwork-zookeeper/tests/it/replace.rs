//! Upgrades among waiters.

#![allow(clippy::disallowed_methods, reason = "tests")]

use crate::common::*;
use latchwork::LockManager;
use latchwork_store::{Backend, Cause, Claim, Linger, Mode};

fn with_mode(mode: Mode) -> Claim {
    claim(20 * SEC).with(|it| it.mode = mode)
}

fn replacing(mode: Mode, hold: &Claim) -> Claim {
    with_mode(mode).with(|it| it.beside = Some(hold.id))
}

/// H372: between the read of the queue and the removal of its waiters one of them becomes a holder, because the
/// hold has ended, or the writer ahead of a reader has given up.
#[test]
fn h372_a_waiter_that_holds_meanwhile_is_not_removed() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap();
    let proxy = Proxy::zookeeper(server.port()).unwrap();
    run(async {
        let (slow, _driver) = backend(&url(proxy.port())).await;
        let (other, driver) = backend(&server.url()).await;
        let locks = LockManager::new(other.clone(), driver);
        let (slow, other) = (Client::on(slow), Client::on(other));
        for hold_ends in [true, false] {
            let [hold, reader] = [(); 2].map(|()| with_mode(Mode::Read));
            let writer = with_mode(Mode::Write);
            slow.granted(&hold).await;
            for waiter in [&writer, &reader] {
                other.blocked(waiter).await;
            }
            proxy.delay(Direction::ToServer, 500 * MS);
            let write = replacing(Mode::Write, &hold);
            let upgrades = slow.blocked(&write);
            let changes = async {
                until(&locks, "k", |shown| shown.waiters.len() == 3).await;
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
                slow.0.release(claim, Linger::None).await.unwrap();
            }
        }
    });
}

/// Waiters of which a transaction takes only some are removed in parts, and make other nodes.
#[test]
fn an_upgrade_overtakes_more_waiters_than_a_transaction_takes() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap();
    run(async {
        let (mine, driver) = backend(&server.url()).await;
        let locks = LockManager::new(mine.clone(), driver);
        let mine = Client::on(mine);
        let [hold, other] = [(); 2].map(|()| with_mode(Mode::Read));
        mine.granted(&hold).await;
        mine.granted(&other).await;
        let writers: Vec<_> = (0..250).map(|_| with_mode(Mode::Write)).collect();
        for writer in &writers {
            mine.blocked(writer).await;
        }
        let waiters = async || show(&locks, "k").await.waiters.len();
        let write = replacing(Mode::Write, &hold);
        mine.blocked(&write.clone().with(|it| it.waits = false)).await;
        assert_eq!(waiters().await, 250, "a single try overtakes nobody");
        let blocked = mine.blocked(&write).await;
        assert_eq!((blocked.ahead, blocked.cause, waiters().await), (Some(0), Cause::Held, 1));
        assert_eq!(mine.blocked(&writers[249]).await.ahead, Some(1), "the upgrade is ahead");
        mine.released(&other).await;
        mine.granted(&write).await;
        mine.released(&hold).await;
        mine.blocked(&writers[249]).await;
        mine.released(&write).await;
        mine.granted(&writers[249]).await;
    });
}
