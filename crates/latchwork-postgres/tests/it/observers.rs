//! What observers cost the server, and what others can do to them.

use crate::common::*;
use latchwork_services::PostgresOptions;
use latchwork_store::{Backend, Key, Released};

fn key(n: usize) -> Key {
    Key::new(format!("observed{n}")).unwrap()
}

/// Each key that is observed costs one of the locks that all sessions of all databases share. Without one, no session
/// could lock a table, and no lock would be granted.
#[test]
fn thousands_of_observers_leave_the_server_its_locks() {
    let options = PostgresOptions::new()
        .setting("max_connections=20")
        .setting("max_locks_per_transaction=10");
    let server = server_with(&options, "");
    run(async {
        let (observer, other) = (bare(&server.url()).await, bare(&server.url()).await);
        let (mut watches, mut refused) = (Vec::new(), 0);
        for n in 0..4_000 {
            match observer.watch(&key(n % 2_000)).await {
                Ok(Some(watch)) => watches.push((n % 2_000, watch)),
                Ok(None) => refused += 1,
                Err(error) => panic!("{n}: {error:?}"),
            }
        }
        println!("{} are notified, {refused} look by their timer", watches.len());
        let many: Vec<_> = (0..200).map(|n| claim(&format!("k{n}"))).collect();
        let granted =
            futures_util::future::join_all(many.iter().map(|it| other.try_acquire(it))).await;
        assert!(granted.iter().all(Result::is_ok), "{granted:?}");
        let (observed, watch) = &mut watches[0];
        other.granted(&claim(key(*observed).as_str())).await;
        tokio::time::timeout(5 * SEC, watch.changed()).await.expect("a notification").unwrap();
        // One that ends makes room for another one.
        let before = refused;
        watches.clear();
        until(&server, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid::bigint > 2147483647", |n| {
            n == "0"
        })
        .await;
        assert!(before > 0 && observer.watch(&key(1_999)).await.unwrap().is_some());
    });
}

/// The server keeps notifications until each session that listens has read them. A session that listens and ends no
/// transaction reads none, and with 8 GB of them each statement that notifies fails.
#[test]
fn observed_keys_are_granted_while_no_notification_can_be_sent() {
    let server = server();
    run(async {
        let (observer, client) = (bare(&server.url()).await, bare(&server.url()).await);
        let held = claim(key(0).as_str());
        client.granted(&held).await;
        let mut watch = observer.watch(&key(0)).await.unwrap().expect("it is notified");
        assert_eq!(client.released(&held).await, Released::Yes);
        tokio::time::timeout(5 * SEC, watch.changed()).await.expect("a notification").unwrap();
        // As if it were full.
        for (function, does) in [
            ("pg_notification_queue_usage()", "RETURNS float8 LANGUAGE sql AS 'SELECT 1::float8'"),
            (
                "pg_notify(text, text)",
                "RETURNS void LANGUAGE plpgsql AS $$BEGIN RAISE program_limit_exceeded \
                 USING MESSAGE = 'too many notifications in the NOTIFY queue'; END$$",
            ),
        ] {
            server
                .psql(&format!(
                    "ALTER FUNCTION pg_catalog.{function} RENAME TO before; \
                     CREATE FUNCTION pg_catalog.{function} {does}"
                ))
                .unwrap();
        }
        let waits = like(&held);
        client.try_acquire(&held).await.expect("a grant");
        client.try_acquire(&waits).await.expect("a place");
        client.release(&held, latchwork_store::Linger::None).await.expect("a handover");
        client.acquired(&waits).await;
        client.release(&waits, latchwork_store::Linger::For(SEC)).await.expect("a release");
    });
}
