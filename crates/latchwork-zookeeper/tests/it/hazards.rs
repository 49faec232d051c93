//! What only ZooKeeper can suffer: sessions that end, nodes of others with the same id, numbers that
//! begin again, rights.

#![allow(clippy::disallowed_methods, reason = "tests")]

use crate::common::*;
use latchwork_store::{
    Attempt, Backend, BackendErrorKind, ErrorKind, Linger, LostReason, Mode, Released, Renewal,
};
use latchwork_zookeeper::{ZooKeeperBackend, ZooKeeperConfig};

fn server() -> ZooKeeperServer {
    ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap()
}

fn is_granted(attempt: &Attempt) -> bool {
    matches!(attempt, Attempt::Granted(_))
}

/// H69: a node that carries the claim's id, and belongs to another session, is in the way. It is
/// not the claim's own.
#[test]
fn h69_a_node_of_another_session_is_never_taken_for_ones_own() {
    let server = server();
    let proxy = Proxy::zookeeper(server.port()).unwrap();
    run(async {
        let (before, _driver) = backend(&server.url()).await;
        let (backend, _driver) = backend(&url(proxy.port())).await;
        let claim = claim(20 * SEC);
        let other = crate::common::claim(20 * SEC)
            .with(|it| it.key = latchwork_store::Key::new("other").unwrap());
        assert!(is_granted(&backend.try_acquire(&other).await.unwrap()), "the session is up");
        assert!(is_granted(&before.try_acquire(&claim).await.unwrap()));
        // The try is lost on its way, so the claim may have a node, as far as it knows.
        let of = Some("CREATE".to_owned());
        proxy.lose(Loss { of, nth: 1, what: What::Command, cut: Some(Cut::Reset) });
        backend.try_acquire(&claim).await.expect_err("the connection broke");
        for _ in 0..3 {
            let attempt = backend.try_acquire(&claim).await.unwrap();
            assert!(!is_granted(&attempt), "granted on a node of another session");
        }
        before.release(&claim, Linger::None).await.unwrap();
    });
}

/// H71: without a network a holder is told by its own clock, while the server still has its node.
#[test]
fn h71_an_isolated_holder_loses_before_its_session() {
    let server = server();
    let proxy = Proxy::zookeeper(server.port()).unwrap();
    run(async {
        let (holder, other) = (client(&url(proxy.port())).await, client(&server.url()).await);
        let guard = holder.mutex("k").acquire().await.unwrap();
        proxy.freeze(Direction::ToServer);
        proxy.freeze(Direction::ToClient);
        let valid_until = guard.valid_until();
        let lost = guard.lost().await;
        assert_eq!(lost.reason, LostReason::Expired);
        assert!(lost.at.since(valid_until) < SEC, "one renewal may have been under way");
        let shown = show(&other, "k").await;
        assert_eq!(shown.holders.len(), 1, "the session lives on: {shown:?}");
        let next = other.mutex("k").acquire_within(20 * SEC).await.unwrap();
        assert!(next.token() > guard.token());
    });
}

/// H12: what a holder has lost by its own clock is given back when the network is there again, and
/// not only when the session ends.
#[test]
fn h12_a_live_session_releases_a_lost_hold() {
    let server = server();
    let proxy = Proxy::zookeeper(server.port()).unwrap();
    run(async {
        let (holder, other) = (client(&url(proxy.port())).await, client(&server.url()).await);
        let guard = holder.mutex("k").ttl(6 * SEC).acquire().await.unwrap();
        proxy.freeze(Direction::ToServer);
        proxy.freeze(Direction::ToClient);
        guard.lost().await;
        proxy.thaw(Direction::ToServer);
        proxy.thaw(Direction::ToClient);
        let thawed = Instant::now();
        until(&other, "k", latchwork_store::Snapshot::is_free).await;
        stalls::in_time(thawed, 3 * SEC);
    });
}

/// H72: when a lock's node has gone and comes again its numbers begin anew; the tokens do not.
#[test]
fn h72_tokens_grow_after_sequence_numbers_wrap() {
    let options = ZooKeeperOptions::new().flag("-Dznode.container.checkIntervalMs=100");
    let server = ZooKeeperServer::start(&options).unwrap();
    run(async {
        let count = || server.count("zk_znode_count").unwrap();
        let empty = count();
        let locks = client(&format!("{}/deep/down", server.url())).await;
        // Above the locks: the chroot, and the node of a session in a folder.
        let idle = empty + 4;
        let mut last = 0;
        for _ in 0..3 {
            let guard = locks.mutex("k").acquire().await.unwrap();
            assert_eq!(count(), idle + 2);
            assert!(guard.token().get() > last);
            last = guard.token().get();
            guard.release().await.unwrap();
            until_so("the node of the lock is removed", || count() == idle).await;
        }
        locks.close().await;
        drop(locks);
        until_so("the chroot is removed", || count() == empty).await;
    });
}

/// H75: all claims of a session end with it, each guard is told, and a new session takes over.
#[test]
fn h75_a_session_end_reaches_a_hundred_guards() {
    let server = server();
    let proxy = Proxy::zookeeper(server.port()).unwrap();
    run(async {
        let locks = client(&url(proxy.port())).await;
        let mut guards = Vec::new();
        for n in 0..100 {
            guards.push(locks.mutex(format!("k{n}")).acquire().await.unwrap());
        }
        let other = client(&server.url()).await;
        proxy.refuse_connections().unwrap();
        proxy.cut(Cut::Reset).unwrap();
        until(&other, "k99", latchwork_store::Snapshot::is_free).await;
        for guard in &guards {
            guard.ensure_held().expect_err("it was told by its own clock, before the node went");
        }
        proxy.accept_connections().unwrap();
        let next = locks.mutex("k0").acquire_within(20 * SEC).await.unwrap();
        assert!(next.token() > guards[99].token());
        assert!(locks.list("").await.unwrap().len() == 1, "nothing of the old session is left");
        next.release().await.unwrap();
    });
}

/// A session that the servers have ended is told by them: its claims are lost, and tried anew.
#[test]
fn a_session_that_was_ended_from_outside_ends_its_claims() {
    let server = server();
    let proxy = Proxy::zookeeper(server.port()).unwrap();
    run(async {
        let (mine, _driver) = backend(&url(proxy.port())).await;
        let (held, waiting) = (claim(2 * SEC), claim(2 * SEC));
        assert!(is_granted(&mine.try_acquire(&held).await.unwrap()));
        assert!(!is_granted(&mine.try_acquire(&waiting).await.unwrap()));
        proxy.refuse_connections().unwrap();
        proxy.cut(Cut::Reset).unwrap();
        let other = client(&server.url()).await;
        until(&other, "k", latchwork_store::Snapshot::is_free).await;
        proxy.accept_connections().unwrap();
        let start = Instant::now();
        loop {
            match mine.renew_all(std::slice::from_ref(&held)).await.remove(0) {
                Ok(Renewal::Lost) => break,
                Ok(Renewal::Held { .. }) => panic!("held by a session that has ended"),
                Err(_) => assert!(start.elapsed() < 60 * SEC),
            }
            tokio::time::sleep(10 * MS).await;
        }
        assert!(is_granted(&mine.try_acquire(&waiting).await.unwrap()), "a place in a new line");
        assert_eq!(mine.release(&held, Linger::None).await.unwrap(), Released::NotHeld);
        assert_eq!(mine.release(&waiting, Linger::None).await.unwrap(), Released::Yes);
    });
}

/// H9: whoever is evicted by hand learns it at its next renewal, and is fenced by then.
#[test]
fn h09_the_next_renewal_reports_an_eviction_by_hand() {
    let server = server();
    run(async {
        let (locks, other) = (client(&server.url()).await, client(&server.url()).await);
        let guard = locks.mutex("k").acquire().await.unwrap();
        let forced = other.force_release("k").await.unwrap();
        assert_eq!(forced.evicted.len(), 1);
        assert!(forced.token.is_some_and(|token| token > guard.token()), "the holder is fenced");
        let lost = tokio::time::timeout(10 * SEC, guard.lost()).await.unwrap();
        assert_eq!(lost.reason, LostReason::Taken);
    });
}

/// Nodes that are made for a user are closed to others; who is somebody else is told so.
#[test]
fn authentication_admits_known_users_only() {
    let server = server();
    run(async {
        let of = |user: &str| format!("zk://{user}@127.0.0.1:{}/app", server.port());
        let (one, two) = (client(&of("app:secret")).await, client(&of("app:secret")).await);
        let guard = one.mutex("k").acquire().await.unwrap();
        assert!(two.mutex("k").try_acquire().await.unwrap().is_none());
        guard.release().await.unwrap();
        let next = two.mutex("k").acquire().await.unwrap();
        let driver = latchwork::Driver::start().unwrap();
        for stranger in [of("app:wrong"), format!("zk://127.0.0.1:{}/app", server.port())] {
            let config = ZooKeeperConfig::parse(&stranger).unwrap();
            let error =
                ZooKeeperBackend::connect(config, driver.io()).await.expect_err("a stranger");
            assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
            assert!(error.next_step().is_some() && !error.to_string().contains("wrong"), "{error}");
        }
        next.release().await.unwrap();
    });
}

/// A child that no rule of the order knows makes the line unknown: nobody is admitted.
#[test]
fn a_foreign_node_is_named() {
    let server = server();
    run(async {
        let (backend, _driver) = backend(&server.url()).await;
        let locks = client(&server.url()).await;
        // The lock "k" of this chroot is a child of the lock "a" of the other.
        let nested = client(&format!("{}/a", server.url())).await;
        let guard = nested.mutex("k").acquire().await.unwrap();
        let claim = claim(2 * SEC).with(|it| it.key = latchwork_store::Key::new("a").unwrap());
        let error = backend.try_acquire(&claim).await.expect_err("no order is known");
        assert_eq!(error.kind, BackendErrorKind::Mismatch, "{error:?}");
        assert!(error.message.contains("\"k\"") || error.message.contains(".latchwork"), "{error}");
        let shown = show(&locks, "a").await;
        assert!(
            shown.notes.iter().any(|note| note.contains("not a node of Latchwork")),
            "{shown:?}"
        );
        assert_eq!(backend.release(&claim, Linger::None).await.unwrap(), Released::NotHeld);
        guard.release().await.unwrap();
    });
}

#[test]
fn a_ttl_that_no_session_can_have_is_refused_with_the_range() {
    let options = ZooKeeperOptions::new().tick(2 * SEC).longest_session(40 * SEC);
    let server = ZooKeeperServer::start(&options).unwrap();
    run(async {
        let (backend, driver) = backend(&server.url()).await;
        let can = backend.capabilities();
        assert_eq!(can.ttl, 2_400 * MS..=24 * SEC);
        assert_eq!(can.default_ttl, 24 * SEC);
        let locks = latchwork::LockManager::new(backend, driver);
        for ttl in [2 * SEC, 30 * SEC] {
            let error = locks.mutex("k").ttl(ttl).try_acquire().await.expect_err("out of range");
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains("24s"), "{error}");
        }
        let guard = locks.mutex("k").acquire().await.unwrap();
        assert!(guard.ttl() > 23 * SEC, "{:?}", guard.ttl());
        guard.release().await.unwrap();
    });
}

#[test]
fn the_doctor_names_each_servers_role() {
    let mut ensemble = ZooKeeperEnsemble::start(3, &ZooKeeperOptions::new()).unwrap();
    run(async {
        let driver = latchwork::Driver::start().unwrap();
        let config = ZooKeeperConfig::parse(&ensemble.url()).unwrap();
        let examine = || latchwork_zookeeper::doctor(config.clone(), driver.io());
        let report = examine().await.unwrap();
        let of = |code: &str| report.findings.iter().filter(|one| one.code == code).count();
        assert_eq!((of("version"), of("serving"), of("ticks")), (3, 3, 3), "{report:?}");
        assert_eq!((of("sessions"), of("access"), of("reachable")), (1, 1, 0), "{report:?}");
        assert!(report.is_fit());
        // A follower: while a leader is elected nobody can say anything.
        let follower = (ensemble.leader().unwrap() + 1) % 3;
        let gone = format!("127.0.0.1:{}", ensemble.members()[follower].port());
        ensemble.member_mut(follower).kill();
        let report = examine().await.unwrap();
        let missing = report.find("reachable").expect("one does not answer");
        assert_eq!(missing.part.as_deref(), Some(&*gone));
        for member in (0..3).filter(|member| *member != follower) {
            ensemble.member_mut(member).kill();
        }
        let error = examine().await.expect_err("none is there");
        assert_eq!(error.kind(), ErrorKind::Unreachable);
    });
}

/// Permits are watched by whom they can admit.
#[test]
fn a_released_permit_admits_the_next() {
    let server = server();
    run(async {
        let (backend, _driver) = backend(&server.url()).await;
        let permit = |take| claim(60 * SEC).with(|it| it.mode = Mode::Permits { take, of: 3 });
        let (one, two, all) = (permit(1), permit(2), permit(3));
        for claim in [&one, &two] {
            assert!(is_granted(&backend.try_acquire(claim).await.unwrap()));
        }
        let Attempt::Blocked(blocked) = backend.try_acquire(&all).await.unwrap() else {
            panic!("three of three are taken");
        };
        for claim in [&two, &one] {
            let wait = backend.wait(&all, &blocked);
            backend.release(claim, Linger::None).await.unwrap();
            tokio::time::timeout(10 * SEC, wait).await.unwrap().unwrap();
        }
        assert!(is_granted(&backend.try_acquire(&all).await.unwrap()));
    });
}

/// Two who stand behind one another in one session: the end of the first one's wait ends no watch
/// that the second one needs.
#[test]
fn claims_of_one_session_wake_each_other() {
    let server = server();
    run(async {
        let (holder, _driver) = backend(&server.url()).await;
        let (waiters, _driver) = backend(&server.url()).await;
        let [held, first, second] = [(); 3].map(|()| claim(60 * SEC));
        assert!(is_granted(&holder.try_acquire(&held).await.unwrap()));
        let mut told = Vec::new();
        for claim in [&first, &second] {
            match waiters.try_acquire(claim).await.unwrap() {
                Attempt::Blocked(blocked) => told.push(blocked),
                Attempt::Granted(_) => panic!("it is held"),
            }
        }
        let mut later = waiters.wait(&second, &told[1]);
        let early = tokio::time::timeout(100 * MS, &mut later).await;
        assert!(early.is_err(), "nothing has happened");
        let release = holder.release(&held, Linger::None);
        let (woken, _) = tokio::join!(waiters.wait(&first, &told[0]), release);
        woken.unwrap();
        assert!(is_granted(&waiters.try_acquire(&first).await.unwrap()));
        waiters.release(&first, Linger::None).await.unwrap();
        tokio::time::timeout(5 * SEC, later).await.expect("it is woken").unwrap();
        assert!(is_granted(&waiters.try_acquire(&second).await.unwrap()));
    });
}

/// A key that nobody uses again after a linger leaves nothing: who released it removes its node when
/// the leader's clock says so, and not before.
#[test]
fn the_node_of_a_linger_goes_when_that_is_over() {
    const LONG: Duration = Duration::from_secs(2);
    let options = ZooKeeperOptions::new().flag("-Dznode.container.checkIntervalMs=100");
    let server = ZooKeeperServer::start(&options).unwrap();
    let count = || server.count("zk_znode_count").unwrap();
    run(async {
        let (mine, _driver) = backend(&server.url()).await;
        let claim = claim(20 * SEC);
        assert!(is_granted(&mine.try_acquire(&claim).await.unwrap()));
        let held = count();
        let start = Instant::now();
        assert_eq!(mine.release(&claim, Linger::For(LONG)).await.unwrap(), Released::Yes);
        assert_eq!(count(), held, "one node went, another came");
        until_so("the node has gone, and the lock's with it", || count() == held - 2).await;
        assert!(start.elapsed() >= LONG, "the key was closed for {:?} only", start.elapsed());
    });
}

/// A waiter that gives up wakes the one behind it, who is not admitted by that: the key is held.
#[test]
fn a_withdrawal_wakes_without_granting() {
    let server = server();
    run(async {
        let (mine, _driver) = backend(&server.url()).await;
        let [held, first, second] = [(); 3].map(|()| claim(60 * SEC));
        assert!(is_granted(&mine.try_acquire(&held).await.unwrap()));
        assert!(!is_granted(&mine.try_acquire(&first).await.unwrap()));
        let Attempt::Blocked(blocked) = mine.try_acquire(&second).await.unwrap() else {
            panic!("it is held");
        };
        let gives_up = mine.release(&first, Linger::None);
        let (woken, _) = tokio::join!(mine.wait(&second, &blocked), gives_up);
        assert!(matches!(woken.unwrap(), latchwork_store::Wake::Look), "two hold");
    });
}
