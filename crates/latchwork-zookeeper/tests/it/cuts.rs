//! Links between servers that are cut while the clients' connections stand: a server that has lost
//! its leader, and a leader that has lost its followers, both go on answering reads.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::sync::Arc;

use crate::common::*;
use latchwork::{Driver, LockManager};
use latchwork_store::{
    Attempt, Backend, ErrorKind, Io, Linger, LostReason, Moment, Query, Released, Stamp, Wake,
};
use latchwork_zookeeper::{ZooKeeperBackend, ZooKeeperConfig};
use rustix::process::{Pid, Signal, kill_process};

/// The session of four seconds is the shortest with this tick: the least that the proof allows.
const TTL: Duration = Duration::from_millis(2_400);
const SESSION: Duration = Duration::from_secs(4);

fn ensemble() -> Arc<ZooKeeperEnsemble> {
    let options = ZooKeeperOptions::new().tick(2 * SEC).sync_limit(5).links();
    Arc::new(ZooKeeperEnsemble::start(3, &options).unwrap())
}

async fn client_and_clock(url: &str) -> (LockManager, Io) {
    let driver = Driver::start().unwrap();
    let io = driver.io();
    let config = ZooKeeperConfig::parse(url).unwrap();
    let backend = ZooKeeperBackend::connect(config, driver.io()).await.unwrap();
    (LockManager::new(backend, driver).ttl(TTL), io)
}

/// Holds at one server, waits at others, cuts, and expects that the holder was told before the
/// waiter was admitted.
async fn told_before_the_next(
    holder_at: &str,
    waiter_at: &str,
    cut: impl FnOnce() + Send + 'static,
    when_told: impl FnOnce(),
) {
    let (holder, io) = client_and_clock(holder_at).await;
    let (waiter, _) = client_and_clock(waiter_at).await;
    let guard = holder.mutex("k").acquire().await.unwrap();
    let mutex = waiter.mutex("k").fair();
    let waits = async {
        loop {
            match mutex.acquire_within(60 * SEC).await {
                Ok(next) => return (io.now(), next),
                // While its servers choose a leader.
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}"),
            }
        }
    };
    let cuts = async {
        until(&waiter, "k", |shown| shown.waiters.len() == 1).await;
        // Heart-beats and renewals are on their way, whenever it happens.
        tokio::time::sleep(3 * SEC).await;
        guard.ensure_held().unwrap();
        let cut_at = io.now();
        tokio::task::spawn_blocking(cut).await.unwrap();
        let cut_by = io.now();
        let lost = guard.lost().await;
        // Who is chosen when, and so when the next one is admitted, differs from run to run. A
        // majority may end the session so long after it has heard of it last.
        let told = lost.at.since(cut_by);
        assert!(told < SESSION, "told {told:?} after the cut");
        when_told();
        (cut_at, lost)
    };
    let ((admitted_at, next), (cut_at, lost)) = tokio::join!(waits, cuts);
    assert_eq!(lost.reason, LostReason::Expired);
    let after = |moment: Moment| moment.since(cut_at);
    let (told, next_at) = (after(lost.at), after(admitted_at));
    assert!(told < next_at, "told after {told:?}, and another was admitted after {next_at:?}");
    assert!(next.token() > guard.token());
    next.ensure_held().unwrap();
}

/// H67: a follower whose link to the leader is frozen answers reads and pings, and counts for nothing.
#[test]
fn h67_a_holder_at_an_isolated_follower_stops_in_time() {
    let ensemble = ensemble();
    let leader = ensemble.leader().unwrap();
    let follower = (leader + 1) % 3;
    let at = |member: usize| url(ensemble.members()[member].port());
    let links = ensemble.clone();
    let cut = move || {
        let link = links.link(follower, leader).unwrap();
        link.freeze(Direction::ToServer);
        link.freeze(Direction::ToClient);
    };
    run(told_before_the_next(&at(follower), &at(leader), cut, || ()));
}

/// H74: a leader whose followers have left it without a word answers even `sync`.
#[test]
fn h74_a_holder_at_a_deposed_leader_stops_in_time() {
    let ensemble = ensemble();
    let leader = ensemble.leader().unwrap();
    let followers: Vec<_> = (0..3).filter(|member| *member != leader).collect();
    let at = |member: usize| url(ensemble.members()[member].port());
    let others = format!(
        "zk://127.0.0.1:{},127.0.0.1:{}",
        ensemble.members()[followers[0]].port(),
        ensemble.members()[followers[1]].port(),
    );
    let links = ensemble.clone();
    let pid = Pid::from_raw(ensemble.members()[leader].pid() as i32).unwrap();
    let cut = move || {
        for follower in &followers {
            let link = links.link(*follower, leader).unwrap();
            link.refuse_connections().unwrap();
            link.cut(Cut::Abandon).unwrap();
        }
    };
    // Or it may be chosen again, by followers that cannot reach it.
    let ends = || kill_process(pid, Signal::KILL).unwrap();
    run(told_before_the_next(&at(leader), &others, cut, ends));
}

/// A link that is frozen again and again, and lets through a moment's worth between: what got
/// through proves no more than it does.
#[test]
fn a_holder_behind_a_flapping_link_stops_in_time() {
    let ensemble = ensemble();
    let leader = ensemble.leader().unwrap();
    let follower = (leader + 1) % 3;
    let at = |member: usize| url(ensemble.members()[member].port());
    let links = ensemble.clone();
    let cut = move || {
        let link = links.link(follower, leader).unwrap();
        let both = [Direction::ToServer, Direction::ToClient];
        for _ in 0..3 {
            both.iter().for_each(|direction| link.freeze(*direction));
            std::thread::sleep(1_300 * MS);
            both.iter().for_each(|direction| link.thaw(*direction));
            std::thread::sleep(4 * MS);
        }
        both.iter().for_each(|direction| link.freeze(*direction));
    };
    run(told_before_the_next(&at(follower), &at(leader), cut, || ()));
}

/// H70: a create that was stuck behind a frozen link comes through when its session is elsewhere:
/// it makes nothing.
#[test]
fn h70_a_late_create_from_the_old_server_has_no_effect() {
    let options = ZooKeeperOptions::new().sync_limit(100).links();
    let ensemble = ZooKeeperEnsemble::start(3, &options).unwrap();
    let leader = ensemble.leader().unwrap();
    let follower = (leader + 1) % 3;
    let proxy = |member: usize| Proxy::zookeeper(ensemble.members()[member].port()).unwrap();
    let (at_follower, at_leader) = (proxy(follower), proxy(leader));
    run(async {
        at_leader.refuse_connections().unwrap();
        let both = format!("zk://127.0.0.1:{},127.0.0.1:{}", at_follower.port(), at_leader.port());
        let locks = client(&both).await.ttl(4 * SEC);
        locks.mutex("k").acquire().await.unwrap().release().await.unwrap();
        at_leader.accept_connections().unwrap();
        let witness = client(&url(ensemble.members()[leader].port())).await;
        let link = ensemble.link(follower, leader).unwrap();
        at_follower.reset_counts();
        link.freeze(Direction::ToServer);
        let guard = locks.mutex("k").acquire_within(20 * SEC).await.unwrap();
        assert!(at_follower.counts()["CREATE"] >= 1, "the first try went to the follower");
        let before = show(&witness, "k").await;
        assert_eq!((before.holders.len(), before.waiters.len()), (1, 0), "{before:?}");
        link.thaw(Direction::ToServer);
        // What this writes through the same link has come after it.
        let through = client(&url(ensemble.members()[follower].port())).await.ttl(20 * SEC);
        let other = through.mutex("other").acquire_within(20 * SEC).await.unwrap();
        other.release().await.unwrap();
        let after = show(&witness, "k").await;
        assert_eq!((after.holders.len(), after.waiters.len()), (1, 0), "{after:?}");
        assert_eq!(after.holders[0].token, before.holders[0].token);
        guard.release().await.unwrap();
        assert!(show(&witness, "k").await.is_free());
    });
}

/// D2: a follower that lags behind has a claim first in line that has ended at the leader. A try
/// writes before it reads the line, and the answer to that has all that was agreed on before.
#[test]
fn d2_a_lagging_follower_grants_no_ended_place() {
    let ensemble = ensemble();
    let leader = ensemble.leader().unwrap();
    let follower = (leader + 1) % 3;
    let at = |member: usize| url(ensemble.members()[member].port());
    run(async {
        let (late, _driver) = backend(&at(follower)).await;
        let (other, _driver) = backend(&at(leader)).await;
        let [held, waiting, next] = [(); 3].map(|()| claim(30 * SEC));
        let is_granted = |attempt: Attempt| matches!(attempt, Attempt::Granted(_));
        assert!(is_granted(other.try_acquire(&held).await.unwrap()));
        assert!(!is_granted(late.try_acquire(&waiting).await.unwrap()));
        other.release(&held, Linger::None).await.unwrap();
        // The follower has heard of that, and hears of nothing from here on.
        late.inspect(&Query::Key(held.key.clone())).await.unwrap();
        let link = ensemble.link(follower, leader).unwrap();
        link.freeze(Direction::ToClient);
        let ended = other.release(&waiting, Linger::None).await.unwrap();
        assert_eq!(ended, Released::Yes, "whoever knows the id may end a claim");
        assert!(is_granted(other.try_acquire(&next).await.unwrap()));
        let tried = tokio::time::timeout(2 * SEC, late.try_acquire(&waiting)).await;
        assert!(!tried.is_ok_and(|tried| tried.is_ok_and(is_granted)), "two hold");
        link.thaw(Direction::ToClient);
        let again = loop {
            match late.try_acquire(&waiting).await {
                Ok(attempt) => break attempt,
                Err(_) => tokio::time::sleep(50 * MS).await,
            }
        };
        assert!(!is_granted(again), "two hold");
    });
}

/// A follower whose words do not reach the leader any more still hears of a release. Whom it wakes
/// believes only in what was proven before, and the leader keeps its session for longer than that.
#[test]
fn a_wake_up_from_an_isolated_follower_ages() {
    // The next heart-beat is far away: behind it the server would keep the list back.
    const LONG: Duration = Duration::from_secs(24);
    let ensemble = ensemble();
    let leader = ensemble.leader().unwrap();
    let follower = (leader + 1) % 3;
    let at = |member: usize| url(ensemble.members()[member].port());
    run(async {
        let (waiter, _driver) = backend(&at(follower)).await;
        let (holder, io) = client_and_clock(&at(leader)).await;
        let guard = holder.mutex("k").acquire().await.unwrap();
        let waiting = claim(LONG).with(|it| it.stamp = Stamp::new(io.now()));
        let Attempt::Blocked(blocked) = waiter.try_acquire(&waiting).await.unwrap() else {
            panic!("it is held");
        };
        ensemble.link(follower, leader).unwrap().freeze(Direction::ToServer);
        let cut_at = io.now();
        let releases = async {
            tokio::time::sleep(300 * MS).await;
            guard.release().await.unwrap();
        };
        let (woken, ()) = tokio::join!(waiter.wait(&waiting, &blocked), releases);
        let Wake::Admitted { grant, stamp, since_try } = woken.unwrap() else {
            panic!("much of the ttl is left");
        };
        let valid_until = stamp.sent_at().plus(since_try).plus(grant.ttl);
        assert!(valid_until <= cut_at.plus(LONG), "nothing that was sent later was answered");
        assert!(valid_until >= cut_at.plus(LONG * 3 / 4), "{grant:?}");
    });
}
