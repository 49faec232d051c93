//! Leaders that die, stand still or are not heard, and members that all start anew.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::time::{Duration, Instant};

use crate::common::*;
use futures_util::future::join_all;
use latchwork::fence::Fence;
use latchwork::{Guard, LockManager};
use latchwork_services::{Direction, EtcdCluster, EtcdOptions, EtcdServer, Proxy};
use latchwork_store::clock::boot_time;
use latchwork_store::testing::stalls;
use latchwork_store::{Backend, ErrorKind, LostReason, Wake};

fn cluster() -> EtcdCluster {
    EtcdCluster::start(3, &EtcdOptions::new()).unwrap()
}

async fn hold(locks: &LockManager, names: &[String]) -> Vec<Guard> {
    let mutexes: Vec<_> = names.iter().map(|name| locks.mutex(name)).collect();
    let guards = join_all(mutexes.iter().map(|mutex| mutex.acquire())).await;
    guards.into_iter().map(Result::unwrap).collect()
}

fn names(number: usize) -> Vec<String> {
    (0..number).map(|n| format!("k{n}")).collect()
}

#[test]
fn holds_survive_the_death_of_the_leader() {
    let mut cluster = cluster();
    run(async {
        let locks = client(&cluster.url()).await.ttl(6 * SEC);
        let guards = hold(&locks, &names(10)).await;
        let leader = cluster.leader().unwrap();
        cluster.member_mut(leader).kill();
        let start = Instant::now();
        while start.elapsed() < 12 * SEC {
            tokio::time::sleep(SEC / 10).await;
            for guard in &guards {
                guard.ensure_held().expect("two members are a majority");
            }
        }
        let other = locks.mutex("other").acquire_within(6 * SEC).await.unwrap();
        other.release().await.unwrap();
    });
}

/// H60: a leader that stood still for longer than the ttl and wakes up takes itself for the leader for
/// a moment, and may end leases that were kept alive at its successor. That is so before 3.4.31 and
/// 3.5.13, and again from 3.5.16 on, where a member that has just ticked asks nobody whether it leads.
/// So this asserts what can be had: the holder is told at once, and whoever comes next has a larger
/// token.
#[test]
fn h60_a_stalled_leader_ends_no_hold_unnoticed() {
    let mut cluster = cluster();
    run(async {
        let (holder, next) = (client(&cluster.url()).await, client(&cluster.url()).await);
        let (holder, next) = (holder.ttl(6 * SEC), next.ttl(6 * SEC));
        let names = names(10);
        let guards = hold(&holder, &names).await;
        let waits = names.iter().map(|name| {
            let mutex = next.mutex(name).fair();
            async move { (mutex.acquire_within(25 * SEC).await, boot_time()) }
        });
        let pause = async {
            for name in &names {
                until(&holder, name, |shown| shown.waiters.len() == 1).await;
            }
            let leader = cluster.leader().unwrap();
            cluster.member_mut(leader).stop().unwrap();
            tokio::time::sleep(9 * SEC).await;
            cluster.member_mut(leader).cont().unwrap();
        };
        let (waited, ()) = tokio::join!(join_all(waits), pause);
        for (guard, (next, at)) in guards.iter().zip(waited) {
            let Ok(next) = next else {
                guard.ensure_held().expect("nobody else has it");
                continue;
            };
            let fence = Fence::new();
            fence.check_write(next.token()).unwrap();
            assert!(fence.check_write(guard.token()).is_err(), "the first one is fenced");
            let told = guard.lost().await;
            let late = told.at.since(at);
            assert!(late < SEC, "told {late:?} after the next one was let in");
        }
    });
}

/// What a leader says to the others is lost: they elect another one. The old one neither grants nor
/// renews, for it has no majority; who can reach the others goes on.
#[test]
fn an_isolated_leader_grants_and_renews_nothing() {
    let cluster = EtcdCluster::start_with_proxies(3, &EtcdOptions::new()).unwrap();
    run(async {
        let leader = cluster.leader().unwrap();
        let here = cluster.members()[leader].url();
        let captive = client(&here).await.ttl(4 * SEC);
        let free = client(&cluster.url()).await.ttl(8 * SEC);
        let lost = captive.mutex("captive").acquire().await.unwrap();
        let kept = free.mutex("free").acquire().await.unwrap();
        cluster.silence(leader, true);
        let told = tokio::time::timeout(20 * SEC, lost.lost()).await.unwrap();
        assert_eq!(told.reason, LostReason::Expired);
        let error = captive.mutex("other").acquire_within(2 * SEC).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::TimedOut), "{error}");
        let next = free.mutex("captive").acquire_within(30 * SEC).await.unwrap();
        assert!(next.token() > lost.token());
        kept.ensure_held().expect("two members are a majority");
        cluster.silence(leader, false);
        let again = captive.mutex("other").acquire_within(30 * SEC).await.unwrap();
        again.release().await.unwrap();
    });
}

/// A member that clients cannot reach, while the cluster is whole.
#[test]
fn a_member_that_is_cut_off_from_clients_is_passed_over() {
    let cluster = cluster();
    let proxies: Vec<_> =
        cluster.members().iter().map(|m| Proxy::plain(m.port()).unwrap()).collect();
    let hosts: Vec<_> = proxies.iter().map(|p| format!("127.0.0.1:{}", p.port())).collect();
    run(async {
        let locks = client(&format!("etcd://{}", hosts.join(","))).await.ttl(8 * SEC);
        let guard = locks.mutex("k").acquire().await.unwrap();
        for cut_off in [0, 1, 2] {
            for direction in [Direction::ToServer, Direction::ToClient] {
                proxies[cut_off].freeze(direction);
            }
            let start = Instant::now();
            while start.elapsed() < 9 * SEC {
                tokio::time::sleep(SEC / 10).await;
                guard.ensure_held().expect("two members can be reached");
            }
            let other = locks.mutex("other").acquire_within(8 * SEC).await.unwrap();
            other.release().await.unwrap();
            for direction in [Direction::ToServer, Direction::ToClient] {
                proxies[cut_off].thaw(direction);
            }
        }
    });
}

/// The link says nothing any more, and does not end either: the wait goes on at another member, before
/// core would look by itself.
#[test]
fn a_wait_moves_away_from_a_silent_member() {
    let cluster = cluster();
    let proxies: Vec<_> =
        cluster.members().iter().map(|m| Proxy::plain(m.port()).unwrap()).collect();
    let hosts: Vec<_> = proxies.iter().map(|p| format!("127.0.0.1:{}", p.port())).collect();
    run(async {
        let holder = bare(&cluster.url()).await;
        let waiter = bare(&format!("etcd://{}", hosts.join(","))).await;
        let (first, next) = (claim("k"), claim("k"));
        holder.granted(&first).await;
        let blocked = waiter.blocked(&next).await;
        let leaves = async {
            watches(&cluster.members()[0], |n| n >= 2.0).await;
            for direction in [Direction::ToServer, Direction::ToClient] {
                proxies[0].freeze(direction);
            }
            holder.released(&first).await;
        };
        let wait = tokio::time::timeout(9 * SEC, waiter.wait(&next, &blocked));
        let (wake, ()) = tokio::join!(wait, leaves);
        let wake = wake.expect("the silence is noticed").unwrap();
        assert!(matches!(wake, Wake::Admitted { .. }), "{wake:?}");
        assert!(waiter.held(&next).await);
    });
}

#[test]
fn holds_and_waits_survive_a_restart_of_all_members() {
    let mut cluster = cluster();
    run(async {
        let (holder, waiter) = (client(&cluster.url()).await, client(&cluster.url()).await);
        let (holder, waiter) = (holder.ttl(20 * SEC), waiter.ttl(20 * SEC));
        let guard = holder.mutex("k").acquire().await.unwrap();
        let token = guard.token();
        let mutex = waiter.mutex("k");
        let restarts = async {
            until(&holder, "k", |shown| shown.waiters.len() == 1).await;
            for member in 0..3 {
                cluster.member_mut(member).kill();
            }
            for member in 0..3 {
                cluster.member_mut(member).relaunch().unwrap();
            }
            cluster.leader().unwrap();
            // Past what the last renewal before the restart was good for.
            tokio::time::sleep(22 * SEC).await;
            guard.ensure_held().expect("it was renewed after the restart");
            guard.release().await.unwrap();
        };
        let (next, ()) = tokio::join!(mutex.acquire_within(60 * SEC), restarts);
        let next = next.unwrap();
        assert!(next.token() > token);
        next.ensure_held().unwrap();
    });
}

/// H323: one member after the other, to the next version, with logins and without.
#[test]
fn h323_a_rolling_upgrade_costs_no_lock() {
    for password in [None, Some("secret")] {
        let mut options = EtcdOptions::of("etcd@3.6.16");
        if let Some(password) = password {
            options = options.root_password(password);
        }
        let mut cluster = EtcdCluster::start(3, &options).unwrap();
        let url = match password {
            Some(password) => cluster.url().replace("://", &format!("://root:{password}@")),
            None => cluster.url(),
        };
        run(async {
            let (holder, waiter) = (client(&url).await, client(&url).await);
            let (holder, waiter) = (holder.ttl(20 * SEC), waiter.ttl(20 * SEC));
            let guard = holder.mutex("k").acquire().await.unwrap();
            let token = guard.token();
            let mutex = waiter.mutex("k");
            let upgrade = async {
                until(&holder, "k", |shown| shown.waiters.len() == 1).await;
                for member in 0..3 {
                    cluster.member_mut(member).upgrade("etcd@3.7.3").unwrap();
                    tokio::time::sleep(SEC).await;
                    guard.ensure_held().expect("two members are a majority");
                }
                // Past what the last renewal before it was good for.
                tokio::time::sleep(20 * SEC).await;
                guard.ensure_held().expect("it was renewed after the upgrade");
                guard.release().await.unwrap();
            };
            let (next, ()) = tokio::join!(mutex.acquire_within(120 * SEC), upgrade);
            assert!(next.unwrap().token() > token);
        });
    }
}

/// How long a waiter had to wait for a holder that has gone without a word.
async fn takeover(url: &str, ttl: Duration, meanwhile: impl Future<Output = ()>) -> Duration {
    let (dead, waiter) = (bare(url).await, bare(url).await);
    let mut first = claim("k");
    first.ttl = ttl;
    let mut next = like(&first, "k");
    next.ttl = 60 * SEC;
    let start = Instant::now();
    dead.granted(&first).await;
    let waits = async {
        loop {
            let blocked = match waiter.try_acquire(&next).await {
                Ok(latchwork_store::Attempt::Granted(_)) => return,
                Ok(latchwork_store::Attempt::Blocked(blocked)) => blocked,
                Err(_) => continue, // no leader yet
            };
            let wait = tokio::time::timeout(5 * SEC, waiter.wait(&next, &blocked)).await;
            if let Ok(Ok(Wake::Admitted { .. })) = wait {
                return;
            }
        }
    };
    tokio::join!(waits, meanwhile);
    let took = start.elapsed();
    waiter.released(&next).await;
    took
}

/// H63: etcd looks for ended leases every half second, and revokes them by a majority.
#[test]
fn h63_a_dead_holders_lock_is_free_after_ttl_plus_4_s() {
    let server = EtcdServer::start(&EtcdOptions::new()).unwrap();
    run(async {
        let took = takeover(&server.url(), 3 * SEC, async {}).await;
        assert!(took >= 3 * SEC, "not before its ttl: {took:?}");
        assert!(took < stalls::widened(7 * SEC + SEC, took), "{took:?}");
    });
}

/// H62: a new leader starts every ttl anew, so the lock of a dead holder is kept for longer, but not
/// for ever.
#[test]
fn h62_an_etcd_election_adds_at_most_one_ttl() {
    let mut cluster = cluster();
    run(async {
        let leader = cluster.leader().unwrap();
        let url = cluster.url();
        let dies = async {
            tokio::time::sleep(3 * SEC).await;
            cluster.member_mut(leader).kill();
        };
        let took = takeover(&url, 4 * SEC, dies).await;
        assert!(took >= 4 * SEC, "not before its ttl: {took:?}");
        // The first of its ttl, an election, a whole ttl, and what H63 allows.
        assert!(took < stalls::widened((3 + 3 + 4 + 4) * SEC + SEC, took), "{took:?}");
    });
}

/// H44 and its like: leases are counted on the monotonic clock, whatever the wall clock shows.
#[test]
fn a_clock_step_on_one_member_changes_no_lock() {
    let cluster = EtcdCluster::start(3, &EtcdOptions::new().with_clock()).unwrap();
    run(async {
        let (holder, waiter) = (client(&cluster.url()).await, bare(&cluster.url()).await);
        let guard = holder.mutex("k").ttl(4 * SEC).acquire().await.unwrap();
        let next = claim("k");
        let leader = cluster.leader().unwrap();
        for member in [leader, (leader + 1) % 3] {
            let clock = cluster.members()[member].clock().unwrap();
            let hour = Duration::from_secs(3_600);
            for step in [clock.step_forward(hour), clock.step_back(2 * hour)] {
                step.unwrap();
                let start = Instant::now();
                while start.elapsed() < 6 * SEC {
                    guard.ensure_held().expect("it is renewed");
                    waiter.blocked(&next).await;
                    tokio::time::sleep(SEC / 5).await;
                }
            }
            clock.reset().unwrap();
        }
        guard.release().await.unwrap();
        waiter.released(&next).await;
    });
}

/// The lock of a dead holder is not free before its ttl; and where the clock was set back, later by as
/// much at most, for etcd keeps the list of what may have ended by the wall clock.
#[test]
fn a_clock_step_delays_expiry_by_at_most_the_step() {
    let server = EtcdServer::start(&EtcdOptions::new().with_clock()).unwrap();
    run(async {
        let (url, clock, step) = (server.url(), server.clock().unwrap(), 5 * SEC);
        for (forward, late) in [(true, SEC), (false, SEC + step)] {
            let is_set = async {
                tokio::time::sleep(SEC).await;
                let set = if forward { clock.step_forward(step) } else { clock.step_back(step) };
                set.unwrap();
            };
            let took = takeover(&url, 4 * SEC, is_set).await;
            assert!(took >= 4 * SEC, "not before its ttl: {took:?}");
            assert!(took < stalls::widened((4 + 4) * SEC + late + SEC, took), "{took:?}");
        }
    });
}
