//! Upgrades among waiters.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::sync::Arc;

use crate::common::*;
use latchwork::LockManager;
use latchwork_store::{Attempt, Backend, Blocked, Cause, Claim, Linger, Mode, Released, Renewal};
use latchwork_zookeeper::ZooKeeperBackend;

struct Client(Arc<ZooKeeperBackend>);

impl Client {
    async fn granted(&self, claim: &Claim) -> u64 {
        match self.0.try_acquire(claim).await.unwrap() {
            Attempt::Granted(grant) => grant.token,
            Attempt::Blocked(blocked) => panic!("{blocked:?}"),
        }
    }

    async fn blocked(&self, claim: &Claim) -> Blocked {
        match self.0.try_acquire(claim).await.unwrap() {
            Attempt::Blocked(blocked) => blocked,
            Attempt::Granted(grant) => panic!("{grant:?}"),
        }
    }

    async fn released(&self, claim: &Claim) -> Released {
        self.0.release(claim, Linger::None).await.unwrap()
    }

    async fn held(&self, claim: &Claim) -> bool {
        let answer = self.0.renew_all(std::slice::from_ref(claim)).await.remove(0).unwrap();
        answer != Renewal::Lost
    }
}

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
        let (slow, other) = (Client(slow), Client(other));
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
                assert_eq!(other.released(leaves).await, Released::Yes);
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

/// Waiters of which a transaction takes only some are removed in parts, and make other nodes.
#[test]
fn an_upgrade_overtakes_more_waiters_than_a_transaction_takes() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap();
    run(async {
        let (mine, driver) = backend(&server.url()).await;
        let locks = LockManager::new(mine.clone(), driver);
        let mine = Client(mine);
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

/// Through guards: a writer that waits comes after the upgrade and the downgrade, with a larger token.
#[test]
fn a_guard_changes_ahead_of_a_writer_that_waits() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap();
    run(async {
        let (one, other) = (client(&server.url()).await, client(&server.url()).await);
        let mut guard = one.rwlock("k").read().acquire().await.unwrap();
        let lock = other.rwlock("k").write();
        let mut writer = Box::pin(lock.acquire_within(30 * SEC));
        let until_it_waits = async {
            until(&one, "k", |shown| shown.waiters.len() == 1).await;
        };
        tokio::select! {
            _ = &mut writer => panic!("somebody reads"),
            () = until_it_waits => {}
        }
        let changes = async {
            let mut last = guard.token();
            for _ in 0..3 {
                for token in [guard.upgrade().await.unwrap(), guard.downgrade().await.unwrap()] {
                    assert!(token > last, "{token} after {last}");
                    last = token;
                }
                until(&one, "k", |shown| shown.waiters.len() == 1).await;
            }
            guard.ensure_held().unwrap();
            last
        };
        let last = tokio::select! {
            _ = &mut writer => panic!("somebody reads or writes"),
            last = changes => last,
        };
        guard.release().await.unwrap();
        let next = writer.await.unwrap();
        assert!(next.token() > last);
        next.release().await.unwrap();
    });
}
