//! What only etcd can suffer: leases and keys that end apart, compaction, restarts.

#![allow(clippy::disallowed_methods, reason = "tests")]

mod common;

use common::*;
use latchwork_core::{Attempt, Backend, LostReason};
use latchwork_services::{EtcdOptions, EtcdServer, etcdctl};

fn server() -> EtcdServer {
    EtcdServer::start(&EtcdOptions::new()).unwrap()
}

/// H59: a waiter whose lease ended in line is not admitted by that place.
#[test]
fn h59_a_place_that_ended_in_line_admits_nobody() {
    let server = server();
    run(async {
        let (holder, waiter) = (client(&server.url()).await, client(&server.url()).await);
        let guard = holder.mutex("k").acquire().await.unwrap();
        let mutex = waiter.mutex("k").fair();
        let waits = mutex.acquire_within(20 * SEC);
        let ends = async {
            until(&holder, "k", |shown| shown.waiters.len() == 1).await;
            let last = keys_of(&server, "k").pop().unwrap();
            let lease = last.rsplit('/').next().unwrap();
            etcdctl(server.port(), &["lease", "revoke", lease]).unwrap();
            guard.release().await.unwrap();
        };
        let (next, ()) = tokio::join!(waits, ends);
        let next = next.unwrap();
        let shown = show(&holder, "k").await;
        assert_eq!(shown.holders.len(), 1, "the guard has a key: {shown:?}");
        next.ensure_held().unwrap();
        next.release().await.unwrap();
    });
}

/// H61: the key is deleted while its lease lives on and goes on being kept alive.
#[test]
fn h61_a_key_deleted_behind_a_live_lease_is_lost() {
    let server = server();
    run(async {
        let locks = client(&server.url()).await;
        let guard = locks.mutex("k").acquire().await.unwrap();
        etcdctl(server.port(), &["del", &keys_of(&server, "k")[0]]).unwrap();
        let lost = tokio::time::timeout(10 * SEC, guard.lost()).await.unwrap();
        assert_eq!(lost.reason, LostReason::Taken);
        let next = locks.mutex("k").acquire_within(10 * SEC).await.unwrap();
        next.release().await.unwrap();
    });
}

/// H65: compaction does not end a wait.
#[test]
fn h65_a_waiter_is_admitted_after_a_compaction() {
    let server = server();
    run(async {
        let (holder, waiter) = (client(&server.url()).await, client(&server.url()).await);
        let guard = holder.mutex("k").acquire().await.unwrap();
        let mutex = waiter.mutex("k");
        let waits = mutex.acquire_within(20 * SEC);
        let compacts = async {
            until(&holder, "k", |shown| shown.waiters.len() == 1).await;
            etcdctl(server.port(), &["put", "x", "1"]).unwrap();
            let fields = etcdctl(server.port(), &["get", "x", "--write-out=fields"]).unwrap();
            let revision = fields.lines().find_map(|l| l.strip_prefix("\"Revision\" : ")).unwrap();
            etcdctl(server.port(), &["compact", revision]).unwrap();
            guard.release().await.unwrap();
        };
        let (next, ()) = tokio::join!(waits, compacts);
        next.unwrap().release().await.unwrap();
    });
}

#[test]
fn a_hold_survives_a_restart_of_the_server() {
    let mut server = server();
    run(async {
        let locks = client(&server.url()).await.ttl(10 * SEC);
        let guard = locks.mutex("k").acquire().await.unwrap();
        // Renewed once: the streams that break are open.
        let renewed = "grpc_method=\"LeaseKeepAlive\"";
        counted(&server, "grpc_server_msg_received_total", renewed, |n| n >= 1.0).await;
        server.restart().unwrap();
        // Past what the renewal before the restart was good for.
        tokio::time::sleep(11 * SEC).await;
        guard.ensure_held().expect("it was renewed after the restart");
        let other = client(&server.url()).await;
        assert!(other.mutex("k").try_acquire().await.unwrap().is_none());
        guard.release().await.unwrap();
    });
}

/// D8: a put does not refresh its lease, so a lease that has been in the pool for a while is kept alive
/// in the same flight; and the grant lasts its whole ttl from then on.
#[test]
fn d8_a_lease_from_the_pool_gives_its_whole_ttl() {
    let server = server();
    run(async {
        let (holder, waiter) = (bare(&server.url()).await, bare(&server.url()).await);
        let with_ttl = |seconds: u32| {
            let mut claim = claim("k");
            claim.ttl = seconds * SEC;
            claim
        };
        let (first, second) = (with_ttl(5), with_ttl(5));
        holder.granted(&first).await;
        holder.released(&first).await;
        tokio::time::sleep(3 * SEC).await;
        let (asked, before) = (Requests::of(&server), std::time::Instant::now());
        holder.granted(&second).await;
        assert_eq!(Requests::of(&server).since(asked).leases, 0, "it is three seconds old");
        let next = with_ttl(60);
        while matches!(waiter.try_acquire(&next).await, Ok(Attempt::Blocked(_))) {
            tokio::time::sleep(SEC / 20).await;
        }
        let kept = before.elapsed();
        assert!(kept >= 5 * SEC, "it ended after {kept:?}");
    });
}
