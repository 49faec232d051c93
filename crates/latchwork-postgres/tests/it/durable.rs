//! Which commits wait for the disk and for a synchronous standby, and which do not. The standby is away, and somebody
//! ends the wait for it: the server then reports success, with a warning.

use std::fmt::Debug;
use std::pin::pin;

use crate::common::*;
use latchwork_services::{PostgresOptions, PostgresServer};
use latchwork_store::{Backend, BackendError, Effect, Key, Linger, Mode, Wake};

/// Whatever the server's default is.
fn careless() -> PostgresServer {
    server_with(&PostgresOptions::new().setting("synchronous_commit=off"), "")
}

async fn standby(server: &PostgresServer, names: &str) {
    server.psql(&format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'")).unwrap();
    server.psql("SELECT pg_reload_conf()").unwrap();
    until(server, "SHOW synchronous_standby_names", |said| said == names).await;
}

/// Ends the wait of a verb for the standby: its effect is unknown.
async fn unconfirmed<T: Debug>(
    server: &PostgresServer,
    what: &str,
    verb: impl Future<Output = Result<T, BackendError>>,
) {
    let end =
        "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    let (answer, ()) = tokio::join!(verb, until(server, end, |n| n == "1"));
    assert_eq!(answer.expect_err(what).effect, Effect::Unknown, "{what}");
}

/// A verb that waits for no standby.
async fn at_once<T>(what: &str, verb: impl Future<Output = Result<T, BackendError>>) -> T {
    tokio::time::timeout(10 * SEC, verb).await.expect(what).expect(what)
}

#[test]
fn h145_grants_renewals_and_lingers_wait_for_the_standby() {
    let server = careless();
    run(async {
        let client = bare(&server.url()).await;
        let long = |key: &str, mode| {
            claim(key).with(|it| {
                it.ttl = 60 * SEC;
                it.mode = mode;
            })
        };
        let alone = [long("alone", Mode::Exclusive)];
        let shared = [long("shared", Mode::Read)];
        let lingers = long("lingers", Mode::Exclusive);
        for claim in [&alone[0], &shared[0], &lingers] {
            client.granted(claim).await;
            assert!(client.held(claim).await);
        }
        standby(&server, "away").await;
        let one = async |claims| client.renew_all(claims).await.remove(0);
        unconfirmed(&server, "a renewal", one(&alone)).await;
        unconfirmed(&server, "a renewal of a reader", one(&shared)).await;
        let linger = client.release(&lingers, Linger::For(60 * SEC));
        unconfirmed(&server, "a linger", linger).await;
        let (new, reads) = (claim("new"), like(&shared[0]));
        unconfirmed(&server, "a grant", client.try_acquire(&new)).await;
        unconfirmed(&server, "a grant of a function", client.try_acquire(&reads)).await;
        let (waits, looks) = (like(&alone[0]), like(&alone[0]).with(|it| it.waits = false));
        at_once("a place in line", client.try_acquire(&waits)).await;
        at_once("a look", client.try_acquire(&looks)).await;
        at_once("a place that is given up", client.release(&waits, Linger::None)).await;
        at_once("a release", client.release(&alone[0], Linger::None)).await;
        at_once("a release of a reader", client.release(&shared[0], Linger::None)).await;
    });
}

/// The next in line must not learn of its grant, for the standby may take over without it.
#[test]
fn h145_a_pushed_grant_that_is_not_confirmed_is_not_told() {
    let server = careless();
    run(async {
        let (holder, waiter) = (bare(&server.url()).await, bare(&server.url()).await);
        let held = claim("k").with(|it| it.ttl = 60 * SEC);
        holder.granted(&held).await;
        let (waits, blocked) = waiter.waits_for(&held).await;
        standby(&server, "away").await;
        let release = holder.release(&held, Linger::None);
        let wait = tokio::time::timeout(3 * SEC, waiter.wait(&waits, &blocked));
        let (wake, ()) = tokio::join!(wait, unconfirmed(&server, "a pushed grant", release));
        assert!(!matches!(wake, Ok(Ok(Wake::Admitted { .. }))), "{wake:?}");
        standby(&server, "").await;
        waiter.acquired(&waits).await;
    });
}

/// A grant looks for observers before it is committed. An observer that comes between is not notified of it, so its
/// subscription waits for the commit, and the look that follows sees the grant.
#[test]
fn a_subscription_waits_for_a_change_that_is_under_way() {
    let server = careless();
    run(async {
        let (holder, observer) = (bare(&server.url()).await, bare(&server.url()).await);
        let (one, key) = (claim("k").with(|it| it.ttl = 60 * SEC), Key::new("k").unwrap());
        holder.granted(&one).await;
        holder.released(&one).await;
        standby(&server, "away").await;
        let next = like(&one);
        let grant = holder.try_acquire(&next);
        let subscribed = async {
            let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
            until(&server, waits, |n| n == "1").await;
            let mut watch = pin!(observer.watch(&key));
            let early = tokio::time::timeout(500 * MS, &mut watch).await;
            assert!(early.is_err(), "the grant is under way");
            standby(&server, "").await;
            let watch = watch.await.unwrap();
            (watch.is_some(), observer.show("k").await.holders.len())
        };
        let (grant, subscribed) = tokio::join!(grant, subscribed);
        grant.unwrap();
        assert_eq!(subscribed, (true, 1));
    });
}
