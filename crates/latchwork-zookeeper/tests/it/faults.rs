//! Servers that die, stand still or have no majority, and connections that break.

#![allow(clippy::disallowed_methods, reason = "tests")]

use crate::common::process::{Process, hear, role, say};
use crate::common::*;
use latchwork::LockManager;
use latchwork_store::{ErrorKind, LostReason, NotHeld};

fn ensemble() -> ZooKeeperEnsemble {
    ZooKeeperEnsemble::start(3, &ZooKeeperOptions::new()).unwrap()
}

/// A proxy in front of each server, and the address of all of them.
fn proxies(ensemble: &ZooKeeperEnsemble) -> (Vec<Proxy>, String) {
    let proxy = |server: &ZooKeeperServer| Proxy::zookeeper(server.port()).unwrap();
    let proxies: Vec<_> = ensemble.members().iter().map(proxy).collect();
    let hosts: Vec<_> = proxies.iter().map(|p| format!("127.0.0.1:{}", p.port())).collect();
    (proxies, format!("zk://{}", hosts.join(",")))
}

/// A client of one member, which knows the others.
async fn client_of(member: usize, proxies: &[Proxy], url: &str, ttl: Duration) -> LockManager {
    let others = || proxies.iter().enumerate().filter(|(n, _)| *n != member);
    others().for_each(|(_, proxy)| proxy.refuse_connections().unwrap());
    let locks = client(url).await.ttl(ttl);
    locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
    others().for_each(|(_, proxy)| proxy.accept_connections().unwrap());
    locks
}

/// Holds a lock for longer than its ttl, through whatever happens.
async fn stays_held(guard: &latchwork::Guard, length: Duration) {
    let start = Instant::now();
    while start.elapsed() < length {
        tokio::time::sleep(50 * MS).await;
        guard.ensure_held().expect("two servers are a majority");
    }
}

#[test]
fn a_hold_survives_the_death_of_the_leader() {
    let mut ensemble = ensemble();
    run(async {
        let (proxies, url) = proxies(&ensemble);
        let leader = ensemble.leader().unwrap();
        let locks = client_of(leader, &proxies, &url, 6 * SEC).await;
        let guard = locks.mutex("k").acquire().await.unwrap();
        ensemble.member_mut(leader).kill();
        stays_held(&guard, 9 * SEC).await;
        assert!(locks.mutex("k").fair().try_acquire().await.unwrap().is_none());
        let other = locks.mutex("other").acquire_within(5 * SEC).await.unwrap();
        other.release().await.unwrap();
        guard.release().await.unwrap();
        assert!(show(&locks, "k").await.is_free());
    });
}

/// H323: one member after the other, from the version of the system to the newest.
#[test]
fn h323_a_rolling_upgrade_costs_no_lock() {
    let old = ZooKeeperOptions::of("zookeeper@system");
    let mut ensemble = ZooKeeperEnsemble::start(3, &old).unwrap();
    run(async {
        let (holder, waiter) = (client(&ensemble.url()).await, client(&ensemble.url()).await);
        let (holder, waiter) = (holder.ttl(20 * SEC), waiter.ttl(20 * SEC));
        let guard = holder.mutex("k").acquire().await.unwrap();
        let token = guard.token();
        let before = ensemble.members()[0].ask("srvr").unwrap();
        let mutex = waiter.mutex("k");
        let upgrade = async {
            until(&holder, "k", |shown| shown.waiters.len() == 1).await;
            for member in 0..3 {
                ensemble.member_mut(member).upgrade("zookeeper").unwrap();
                tokio::time::sleep(SEC).await;
                guard.ensure_held().expect("two servers are a majority");
            }
            let after = ensemble.members()[0].ask("srvr").unwrap();
            assert_ne!(before.lines().next(), after.lines().next(), "another version");
            guard.release().await.unwrap();
        };
        let (next, ()) = tokio::join!(mutex.acquire_within(120 * SEC), upgrade);
        assert!(next.unwrap().token() > token);
    });
}

#[test]
fn a_hold_survives_a_stopped_server() {
    let mut ensemble = ensemble();
    run(async {
        let (proxies, url) = proxies(&ensemble);
        let leader = ensemble.leader().unwrap();
        let follower = (leader + 1) % 3;
        let locks = client_of(follower, &proxies, &url, 6 * SEC).await;
        let guard = locks.mutex("k").acquire().await.unwrap();
        ensemble.member_mut(follower).stop().unwrap();
        stays_held(&guard, 9 * SEC).await;
        guard.release().await.unwrap();
        ensemble.member_mut(follower).cont().unwrap();
        let witness = client(&ensemble.url()).await;
        until(&witness, "k", latchwork_store::Snapshot::is_free).await;
    });
}

/// The next server knows of what the dead one has answered.
#[test]
fn a_server_death_after_its_answer_keeps_the_hold() {
    let mut ensemble = ensemble();
    run(async {
        let (proxies, url) = proxies(&ensemble);
        let leader = ensemble.leader().unwrap();
        let follower = (leader + 1) % 3;
        let locks = client_of(follower, &proxies, &url, 4 * SEC).await;
        let guard = locks.mutex("k").acquire().await.unwrap();
        ensemble.member_mut(follower).kill();
        // Who asks before the end of the connection is known is told so.
        until(&locks, "k", |shown| !shown.is_free()).await;
        let shown = show(&locks, "k").await;
        assert_eq!((shown.holders.len(), shown.waiters.len()), (1, 0), "{shown:?}");
        assert_eq!(shown.holders[0].token.map(|token| token << 10), Some(guard.token().get()));
        guard.release().await.unwrap();
        assert!(show(&locks, "k").await.is_free());
    });
}

#[test]
fn without_a_majority_nothing_is_held_or_granted() {
    let mut ensemble = ensemble();
    run(async {
        let (holder, waiter) = (client(&ensemble.url()).await, client(&ensemble.url()).await);
        let guard = holder.mutex("k").acquire().await.unwrap();
        let valid_until = guard.valid_until();
        for member in 1..3 {
            ensemble.member_mut(member).stop().unwrap();
        }
        let mutex = waiter.mutex("k");
        let (lost, granted) = tokio::join!(guard.lost(), mutex.acquire_within(4 * SEC));
        assert_eq!(lost.reason, LostReason::Expired);
        // One renewal may have been under way when the servers stopped.
        assert!(lost.at.since(valid_until) < 2 * SEC);
        let error = granted.expect_err("nobody can grant it");
        assert!(matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::TimedOut), "{error:?}");
        for member in 1..3 {
            ensemble.member_mut(member).cont().unwrap();
        }
        let next = waiter.mutex("k").ttl(20 * SEC).acquire_within(30 * SEC).await.unwrap();
        next.release().await.unwrap();
    });
}

#[test]
fn a_client_gets_past_servers_that_do_not_answer() {
    let mut ensemble = ensemble();
    let leader = ensemble.leader().unwrap();
    let follower = (leader + 1) % 3;
    ensemble.member_mut(follower).stop().unwrap();
    run(async {
        for _ in 0..3 {
            let locks = client(&ensemble.url()).await;
            let guard = locks.mutex("k").acquire_within(10 * SEC).await.unwrap();
            guard.release().await.unwrap();
        }
    });
    ensemble.member_mut(follower).kill();
    run(async {
        for _ in 0..3 {
            let locks = client(&ensemble.url()).await;
            let guard = locks.mutex("k").acquire_within(10 * SEC).await.unwrap();
            guard.release().await.unwrap();
        }
    });
}

/// H68: whatever request or answer is lost, and the connection with it: one node, and none at last.
#[test]
fn h68_a_cut_in_any_request_leaves_no_second_node() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap();
    let proxy = Proxy::zookeeper(server.port()).unwrap();
    run(async {
        let (locks, other) = (client(&url(proxy.port())).await, client(&server.url()).await);
        locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
        for name in ["CREATE", "CHILDREN", "DELETE", "SET"] {
            for what in [What::Answer, What::Command] {
                let of = Some(name.to_owned());
                let lost = proxy.counts().lost;
                proxy.lose(Loss { of, nth: 1, what, cut: Some(Cut::Reset) });
                let guard = locks.mutex("k").acquire_within(10 * SEC).await.unwrap();
                let shown = show(&other, "k").await;
                let why = format!("{name} {what:?}");
                assert_eq!((shown.holders.len(), shown.waiters.len()), (1, 0), "{why}: {shown:?}");
                let token = shown.holders[0].token.map(|token| token << 10);
                assert_eq!(token, Some(guard.token().get()), "{why}");
                // Its answer may be lost; it comes true all the same.
                let _ = guard.release().await;
                until_so(&why, || proxy.counts().lost > lost).await;
                until(&other, "k", latchwork_store::Snapshot::is_free).await;
            }
        }
    });
}

/// The one that waits is admitted soon after the release.
async fn comes_soon(
    what: impl std::fmt::Debug,
    waits: impl Future<Output = Result<latchwork::Guard, latchwork_store::Error>>,
    releases: impl Future<Output = Instant>,
) {
    let (next, released_at) = tokio::join!(waits, releases);
    let late = released_at.elapsed();
    assert!(late < 5 * SEC, "{what:?}: admitted {late:?} after the release");
    next.unwrap().release().await.unwrap();
}

/// A watch whose answer or request is lost, or that breaks with its connection, hides no release.
#[test]
fn a_connection_that_breaks_while_watching_hides_no_release() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap();
    let proxy = Proxy::zookeeper(server.port()).unwrap();
    run(async {
        let holder = client(&server.url()).await.ttl(30 * SEC);
        // It looks by itself only after ten seconds.
        let waiter = client(&url(proxy.port())).await.ttl(60 * SEC);
        for what in [Some(What::Answer), Some(What::Command), None] {
            let guard = holder.mutex("k").acquire().await.unwrap();
            if let Some(what) = what {
                let of = Some("WATCH".to_owned());
                proxy.lose(Loss { of, nth: 1, what, cut: Some(Cut::Reset) });
            }
            proxy.reset_counts();
            let mutex = waiter.mutex("k").fair();
            let waits = mutex.acquire_within(30 * SEC);
            let releases = async {
                until(&holder, "k", |shown| shown.waiters.len() == 1).await;
                proxy.counts_reach(|counts| counts["WATCH"] >= 1).await;
                if what.is_none() {
                    until_so("the watch stands", || {
                        let counts = proxy.counts();
                        counts["WATCH"] == 1 && counts.answers == counts.total()
                    })
                    .await;
                    proxy.cut(Cut::Reset).unwrap();
                }
                guard.release().await.unwrap();
                Instant::now()
            };
            comes_soon(what, waits, releases).await;
        }
    });
}

/// The same when who stood ahead has left, and the one before that is watched from then on. Who is
/// told the holder's name already has no other reason to look again soon.
#[test]
fn a_lost_watch_connection_hides_no_release_elsewhere() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap();
    let proxy = Proxy::zookeeper(server.port()).unwrap();
    run(async {
        let others = client(&server.url()).await.ttl(30 * SEC);
        let waiter = client(&url(proxy.port())).await.ttl(60 * SEC);
        for what in [What::Answer, What::Command] {
            let guard = others.mutex("k").acquire().await.unwrap();
            let between = others.mutex("k").fair();
            let between = tokio::spawn(async move { between.acquire().await.map(drop) });
            until(&others, "k", |shown| shown.waiters.len() == 1).await;
            proxy.reset_counts();
            let mutex = waiter.mutex("k").fair();
            let waits = mutex.acquire_within(30 * SEC);
            let releases = async {
                proxy.counts_reach(|counts| counts["GET"] >= 1).await;
                let of = Some("WATCH".to_owned());
                proxy.lose(Loss { of, nth: 1, what, cut: Some(Cut::Reset) });
                between.abort();
                proxy.counts_reach(|counts| counts.lost >= 1).await;
                // By then it waits again, whatever it believes.
                tokio::time::sleep(500 * MS).await;
                guard.release().await.unwrap();
                Instant::now()
            };
            comes_soon(what, waits, releases).await;
        }
    });
}

/// The session goes on at another server, and with it holds and places.
#[test]
fn a_session_moves_to_another_server() {
    let ensemble = ensemble();
    run(async {
        let (proxies, url) = proxies(&ensemble);
        let first = client_of(0, &proxies, &url, 4 * SEC).await;
        let second = client_of(1, &proxies, &url, 4 * SEC).await;
        let guard = first.mutex("k").acquire().await.unwrap();
        let mutex = second.mutex("k").fair();
        let waits = mutex.acquire_within(30 * SEC);
        let moves = async {
            until(&first, "k", |shown| shown.waiters.len() == 1).await;
            let before = show(&first, "k").await;
            for proxy in &proxies[..2] {
                proxy.refuse_connections().unwrap();
                proxy.cut(Cut::Reset).unwrap();
            }
            stays_held(&guard, 6 * SEC).await;
            let after = show(&first, "k").await;
            assert_eq!(before.holders[0].token, after.holders[0].token);
            assert_eq!(after.waiters.len(), 1, "{after:?}");
            assert!(proxies[2].counts().connections >= 2);
            guard.release().await.unwrap();
        };
        let (next, ()) = tokio::join!(waits, moves);
        next.unwrap().release().await.unwrap();
        until(&first, "k", latchwork_store::Snapshot::is_free).await;
    });
}

/// The part of the other process.
#[test]
fn child() {
    let Some((_, store)) = role() else { return };
    run(async {
        let locks = client(&store).await;
        let guard = locks.mutex("k").acquire().await.unwrap();
        say(format_args!("{}", guard.ensure_held().unwrap().get()));
        hear();
        say(match guard.ensure_held() {
            Err(NotHeld::Lost(_)) => "lost",
            Err(_) => "suspect",
            Ok(_) => "held",
        });
        say(format_args!("{:?}", guard.release().await.map_err(|error| error.kind())));
        // A new session for a new claim.
        let again = locks.mutex("k2").acquire_within(20 * SEC).await.unwrap();
        say(format_args!("{}", again.token().get()));
    });
}

/// H1: a holder that stood still past its session is told at its first look, and the lock has
/// passed on with a greater token.
#[test]
fn h01_a_holder_stopped_past_its_session_reads_lost() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap();
    run(async {
        let mut holder = Process::start("faults::hold", &server.url());
        let token: u64 = holder.line().parse().unwrap();
        let other = client(&server.url()).await;
        holder.stop();
        let next = other.mutex("k").acquire_within(20 * SEC).await.unwrap();
        assert!(next.token().get() > token);
        holder.tell("go on");
        holder.cont();
        assert_eq!(holder.line(), "lost");
        assert_eq!(holder.line(), "Err(Lost)");
        assert!(holder.line().parse::<u64>().unwrap() > next.token().get());
        next.ensure_held().unwrap();
        next.release().await.unwrap();
    });
}
