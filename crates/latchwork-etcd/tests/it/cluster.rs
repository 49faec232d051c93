//! Members that die, stand still or are cut off.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::time::Instant;

use crate::common::*;
use latchwork_services::{EtcdCluster, EtcdOptions, EtcdServer, etcdctl};
use latchwork_store::doctor::Severity;
use latchwork_store::{ErrorKind, LostReason};

fn cluster() -> EtcdCluster {
    EtcdCluster::start(3, &EtcdOptions::new()).unwrap()
}

#[test]
fn a_hold_survives_the_member_it_was_made_at() {
    let mut cluster = cluster();
    run(async {
        let locks = client(&cluster.url()).await.ttl(8 * SEC);
        let guard = locks.mutex("k").acquire().await.unwrap();
        cluster.member_mut(0).kill();
        let start = Instant::now();
        while start.elapsed() < 12 * SEC {
            tokio::time::sleep(SEC / 10).await;
            guard.ensure_held().expect("two members are a majority");
        }
        assert!(locks.mutex("k").fair().try_acquire().await.unwrap().is_none());
        let other = locks.mutex("other").acquire_within(5 * SEC).await.unwrap();
        other.release().await.unwrap();
        guard.release().await.unwrap();
    });
}

/// Long before the next renewal: the watch on its key has gone to another member.
#[test]
fn a_loss_is_reported_after_the_watched_member_died() {
    let mut cluster = cluster();
    run(async {
        // No renewal would find out that the member died.
        let locks = client(&cluster.url()).await.ttl(600 * SEC);
        let guard = locks.mutex("k").acquire().await.unwrap();
        watches(cluster.member_mut(0), |n| n == 1.0).await;
        // The look at its key is over: nothing else is asked that could fail.
        tokio::time::sleep(SEC).await;
        cluster.member_mut(0).kill();
        watches(cluster.member_mut(1), |n| n == 1.0).await;
        let key = keys_of(cluster.member_mut(1), "k").remove(0);
        etcdctl(cluster.member_mut(1).port(), &["del", &key]).unwrap();
        let lost = tokio::time::timeout(6 * SEC, guard.lost()).await.expect("it is told");
        assert_eq!(lost.reason, LostReason::Taken);
    });
}

#[test]
fn a_hold_survives_a_stopped_member() {
    let mut cluster = cluster();
    run(async {
        let locks = client(&cluster.url()).await.ttl(8 * SEC);
        let guard = locks.mutex("k").acquire().await.unwrap();
        cluster.member_mut(0).stop().unwrap();
        let start = Instant::now();
        while start.elapsed() < 12 * SEC {
            tokio::time::sleep(SEC / 10).await;
            guard.ensure_held().expect("two members are a majority");
        }
        let other = locks.mutex("other").acquire_within(5 * SEC).await.unwrap();
        other.release().await.unwrap();
        guard.release().await.unwrap();
        cluster.member_mut(0).cont().unwrap();
    });
}

#[test]
fn a_client_gets_past_members_that_do_not_answer() {
    let mut cluster = cluster();
    cluster.member_mut(0).stop().unwrap();
    run(async {
        let locks = client(&cluster.url()).await.ttl(8 * SEC);
        let guard = locks.mutex("k").acquire_within(10 * SEC).await.unwrap();
        guard.release().await.unwrap();
    });
    cluster.member_mut(0).kill();
    run(async {
        let locks = client(&cluster.url()).await.ttl(8 * SEC);
        let guard = locks.mutex("k").acquire_within(10 * SEC).await.unwrap();
        guard.release().await.unwrap();
    });
}

/// Takes requests, answers pings, and nothing else: a proxy whose member hangs.
async fn hanging_proxy() -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                let mut open = Vec::new();
                while let Some(Ok(request)) = connection.accept().await {
                    open.push(request);
                }
            });
        }
    });
    port
}

/// H530: the connection lives, and the first request is not answered.
#[test]
fn h530_a_proxy_whose_member_hangs_is_given_up_at_connect() {
    let server = EtcdServer::start(&EtcdOptions::new()).unwrap();
    run(async {
        let port = hanging_proxy().await;
        let (alone, both) = (
            format!("etcd://127.0.0.1:{port}"),
            format!("etcd://127.0.0.1:{port},127.0.0.1:{}", server.port()),
        );
        let start = Instant::now();
        let (refused, locks) = tokio::join!(connect(&alone), client(&both));
        stalls::in_time(start, 10 * SEC);
        let error = refused.expect_err("it answers nothing");
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.next_step().unwrap().contains("a proxy before them"), "{error}");
        locks.mutex("k").acquire_within(SEC).await.unwrap().release().await.unwrap();
    });
}

/// H66: without a majority the holder is lost by its own clock, and nobody is granted anything.
#[test]
fn h66_without_a_majority_nothing_is_held_or_granted() {
    let mut cluster = cluster();
    run(async {
        let holder = client(&cluster.url()).await.ttl(3 * SEC);
        let waiter = client(&cluster.url()).await.ttl(3 * SEC);
        let guard = holder.mutex("k").acquire().await.unwrap();
        let valid_until = guard.valid_until();
        for member in 1..3 {
            cluster.member_mut(member).stop().unwrap();
        }
        let mutex = waiter.mutex("k");
        let (lost, granted) = tokio::join!(guard.lost(), mutex.acquire_within(4 * SEC));
        assert_eq!(lost.reason, LostReason::Expired);
        // One renewal may have been under way when the members stopped.
        assert!(lost.at.since(valid_until) < 3 * SEC);
        let error = granted.expect_err("nobody can grant it");
        assert!(matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::TimedOut), "{error:?}");
        for member in 1..3 {
            cluster.member_mut(member).cont().unwrap();
        }
        // A leader has to be elected first, and core gives up on a silent store after a ttl.
        let next = client(&cluster.url()).await.ttl(30 * SEC);
        let next = next.mutex("k").acquire_within(30 * SEC).await.unwrap();
        next.release().await.unwrap();
    });
}

#[test]
fn the_doctor_names_a_member_that_is_gone() {
    let mut cluster = cluster();
    run(async {
        let driver = latchwork::Driver::start().unwrap();
        let config = latchwork_etcd::EtcdConfig::parse(&cluster.url()).unwrap();
        let examine = || latchwork_etcd::doctor(config.clone(), driver.io());
        let report = examine().await.unwrap();
        let of = |code: &str| report.findings.iter().filter(|one| one.code == code).count();
        assert_eq!((of("version"), of("leader"), of("reachable")), (3, 3, 0), "{report:?}");
        let gone = format!("127.0.0.1:{}", cluster.members()[1].port());
        cluster.member_mut(1).kill();
        let report = examine().await.unwrap();
        let missing = report.find("reachable").expect("one does not answer");
        assert_eq!(missing.part.as_deref(), Some(&*gone));
        cluster.member_mut(0).kill();
        // The last one notices that it has no leader after an election.
        let start = Instant::now();
        let leader = loop {
            let report = examine().await.unwrap();
            let leader = report.find("leader").unwrap();
            if leader.severity == Severity::Critical || start.elapsed() > 20 * SEC {
                break leader.clone();
            }
        };
        let step = "check that a majority of the members is running and connected to each other";
        assert_eq!((leader.severity, &*leader.remedy), (Severity::Critical, step), "{leader:?}");
        cluster.member_mut(2).kill();
        let error = examine().await.expect_err("none is there");
        assert_eq!(error.kind(), ErrorKind::Unreachable);
    });
}

/// H269: a learner takes no requests of locks. Alone in an address it is named; among others it is
/// passed over.
#[test]
fn h269_a_learner_is_named_and_passed_over() {
    let mut cluster = cluster();
    cluster.replace_by_learner(0).unwrap();
    run(async {
        let alone = cluster.members()[0].url();
        let start = Instant::now();
        let error = loop {
            let error = connect(&alone).await.expect_err("it has no vote");
            // It may not have heard of the cluster yet.
            if error.to_string().contains("learner") || start.elapsed() > 20 * SEC {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.next_step().unwrap().contains("member promote"), "{error:?}");
        let locks = client(&cluster.url()).await;
        locks.mutex("k").acquire().await.unwrap().release().await.unwrap();
        let driver = latchwork::Driver::start().unwrap();
        let config = latchwork_etcd::EtcdConfig::parse(&cluster.url()).unwrap();
        let report = latchwork_etcd::doctor(config, driver.io()).await.unwrap();
        let learner = report.find("learner").unwrap_or_else(|| panic!("{report:#?}"));
        assert!(alone.ends_with(&**learner.part.as_ref().unwrap()), "{learner:?}");
    });
}
