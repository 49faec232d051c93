//! A standby is promoted, and the primary that it replaced comes back: two servers take writes.

use crate::common::*;
use latchwork_services::{PostgresOptions, PostgresServer};
use latchwork_store::{Backend, BackendErrorKind, Cause, Claim, Effect};

const GUARDED: &str = "?guard=true&max_ttl=60s";

/// A primary with the tables, and its standby.
fn pair() -> (PostgresServer, PostgresServer) {
    let primary = server_with(&PostgresOptions::new(), GUARDED);
    let standby = primary.copy(true).unwrap();
    (primary, standby)
}

fn both(old: &PostgresServer, new: &PostgresServer) -> String {
    format!("postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres", old.port(), new.port())
}

fn promote(standby: &PostgresServer) {
    assert_eq!(standby.psql("SELECT pg_promote()").unwrap(), "t");
    // The operator knows that nothing is held: no quarantine.
    run(prepare(&format!("{}{GUARDED}", standby.url()))).unwrap();
}

/// How many keys are held there.
fn held(server: &PostgresServer) -> u32 {
    let held = "SELECT count(*) FROM latchwork WHERE k <> '' AND claim IS NOT NULL";
    server.psql(held).unwrap().parse().unwrap()
}

fn long(key: &str) -> Claim {
    claim(key).with(|it| it.ttl = 60 * SEC)
}

/// H200: the usual crash. The server dies, the standby takes over, and the service manager starts the old one again.
#[test]
fn h200_an_old_primary_that_comes_back_gets_no_new_client() {
    for options in ["", GUARDED] {
        let (mut old, new) = pair();
        let url = format!("{}{options}", both(&old, &new));
        old.kill();
        promote(&new);
        run(async {
            let first = bare(&url).await;
            let one = long("k");
            first.granted(&one).await;
            old.revive().unwrap();
            let second = bare(&url).await;
            let looks = like(&one).with(|it| it.waits = false);
            assert_eq!(second.blocked(&looks).await.cause, Cause::Held);
            // More connections than there are yet.
            let many: Vec<_> = (0..32).map(|n| long(&format!("many{n}"))).collect();
            futures_util::future::join_all(many.iter().map(|claim| first.granted(claim))).await;
            assert!(first.held(&one).await);
            assert_eq!((held(&old), held(&new)), (0, 33));
        });
    }
}

/// H200: the new primary does not answer. A client that knows it does not go to the old one instead.
#[test]
fn h200_a_client_never_goes_back_to_a_smaller_timeline() {
    let (mut old, mut new) = pair();
    let url = both(&old, &new);
    old.kill();
    promote(&new);
    run(async {
        let client = bare(&url).await;
        let one = long("k");
        client.granted(&one).await;
        new.kill();
        old.revive().unwrap();
        let error = loop {
            let error = client.try_acquire(&long("other")).await.expect_err("no server counts");
            if error.message.contains("timeline") {
                break error;
            }
            tokio::time::sleep(10 * MS).await;
        };
        assert_eq!(error.kind, BackendErrorKind::Unreachable, "{error:?}");
        assert_eq!(error.effect, Effect::NotApplied, "{error:?}");
        assert!(error.next_step.as_deref().unwrap().contains("standby"), "{error:?}");
        assert_eq!(held(&old), 0);
        new.revive().unwrap();
        assert!(client.held(&one).await);
    });
}

/// H200: the standby is promoted while the primary goes on. A client that meets the new one leaves the old one.
#[test]
fn h200_a_running_client_leaves_a_replaced_primary() {
    let (old, new) = pair();
    let url = both(&old, &new);
    run(async {
        let client = bare(&url).await;
        let one = long("k");
        client.granted(&one).await;
        assert_eq!(held(&old), 1);
        until(&new, "SELECT count(*) FROM latchwork WHERE k = 'k'", |n| n == "1").await;
        promote_beside(&new).await;
        // Renewals have a connection of their own, which is made now.
        assert!(client.held(&one).await);
        client.granted(&long("other")).await;
        assert_eq!((held(&old), held(&new)), (1, 2));
    });
}

/// H301: a service takes the role from a primary and keeps the connections to it.
#[test]
fn h301_a_connection_to_a_server_that_takes_no_more_writes_is_given_up() {
    let (old, new) = pair();
    let url = both(&old, &new);
    run(async {
        let client = bare(&url).await;
        let one = long("k");
        client.granted(&one).await;
        // The connection for renewals is there too.
        assert!(client.held(&one).await);
        until(&new, "SELECT count(*) FROM latchwork WHERE k = 'k'", |n| n == "1").await;
        promote_beside(&new).await;
        old.psql("ALTER SYSTEM SET default_transaction_read_only = on").unwrap();
        old.psql("SELECT pg_reload_conf()").unwrap();
        until(&old, "SHOW default_transaction_read_only", |it| it == "on").await;
        let other = long("other");
        for _ in 0..2 {
            assert!(client.held(&one).await);
            client.granted(&other).await;
        }
        assert_eq!(held(&new), 2);
    });
}

async fn promote_beside(standby: &PostgresServer) {
    assert_eq!(standby.psql("SELECT pg_promote()").unwrap(), "t");
}

/// Waiters listen at the server that grants, although a standby comes first in the address.
#[test]
fn waiters_listen_at_the_primary_behind_a_standby() {
    let (primary, standby) = pair();
    let url = both(&standby, &primary);
    run(async {
        let (holder, waiter) = (bare(&url).await, bare(&url).await);
        let one = long("k");
        holder.granted(&one).await;
        let (waits, _) = waiter.waits_for(&one).await;
        let named = primary.psql("SELECT count(process) FROM latchwork_line").unwrap();
        assert_eq!(named, "1", "the place in the queue names a channel");
        holder.released(&one).await;
        waiter.acquired(&waits).await;
    });
}
