//! Limits and isolation levels that somebody has set: which error they give, and with what effect.
//!
//! A session of its own sets what it needs, so these are met behind a pooler alone: `pooler=true`.

use crate::common::*;
use latchwork_services::{PostgresOptions, PostgresServer};
use latchwork_store::{Attempt, Backend, BackendError, BackendErrorKind, Effect};

/// What a try for a key gets whose row a transaction changes meanwhile, for so many seconds. A try waits for it for
/// half a second at most.
fn meanwhile(settings: &[&str], change: &str, seconds: f64) -> BackendError {
    let server = server();
    server.psql("CREATE ROLE app LOGIN SUPERUSER").unwrap();
    for setting in settings {
        server.psql(&format!("ALTER ROLE app SET {setting}")).unwrap();
    }
    let url = format!("postgres://app@127.0.0.1:{}/postgres?pooler=true", server.port());
    let held = claim("k").with(|it| it.ttl = 60 * SEC);
    run(async { bare(&url).await.granted(&held).await });
    let statements = format!("BEGIN; {change}; SELECT pg_sleep({seconds}); COMMIT");
    let error = std::thread::scope(|scope| {
        let changes = scope.spawn(|| server.psql(&statements));
        let tried = run(try_beside(&server, &url, &held));
        changes.join().unwrap().unwrap();
        tried.expect_err("the row is locked, or was changed")
    });
    // Nothing has happened to the key, and the next try is answered.
    run(async {
        let client = bare(&url).await;
        client.blocked(&like(&held)).await;
        assert!(client.held(&held).await);
    });
    error
}

async fn try_beside(
    server: &PostgresServer,
    url: &str,
    held: &latchwork_store::Claim,
) -> Result<Attempt, BackendError> {
    let client = bare(url).await;
    let sleeps = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    until(server, sleeps, |n| n == "1").await;
    client.try_acquire(&like(held)).await
}

fn assert_nothing_applied(error: &BackendError, code: &str) {
    assert_eq!(error.kind, BackendErrorKind::Unreachable, "{error:?}");
    assert_eq!(error.effect, Effect::NotApplied, "{error:?}");
    assert!(error.message.contains(code), "{error:?}");
    assert!(error.next_step.is_some(), "{error:?}");
}

const LOCKS: &str = "SELECT FROM latchwork WHERE k = 'k' FOR UPDATE";

#[test]
fn h143_a_statement_timeout_has_no_effect_and_says_so() {
    let error = meanwhile(&["statement_timeout = '400ms'"], LOCKS, 2.0);
    assert_nothing_applied(&error, "57014");
}

/// The functions set a limit of their own, so it is theirs that ends the wait.
#[test]
fn h143_a_lock_timeout_has_no_effect_and_says_so() {
    let server = server_with(&PostgresOptions::new().setting("lock_timeout=50ms"), "");
    let url = format!("{}?pooler=true", server.url());
    run(async {
        let client = bare(&url).await;
        let held = claim("k").with(|it| it.ttl = 60 * SEC);
        client.granted(&held).await;
        let hold = format!("BEGIN; {LOCKS}; SELECT pg_sleep(4); COMMIT");
        let (tried, took) = std::thread::scope(|scope| {
            let holds = scope.spawn(|| server.psql(&hold));
            let tried = scope.spawn(|| {
                run(async {
                    let start = std::time::Instant::now();
                    (try_beside(&server, &url, &held).await, start.elapsed())
                })
            });
            let tried = tried.join().unwrap();
            holds.join().unwrap().unwrap();
            tried
        });
        let Ok(Attempt::Blocked(blocked)) = tried else { panic!("{tried:?}") };
        let holder = blocked.holder.expect("it says what is in the way");
        assert!(holder.text.contains("pg_locks"), "{holder:?}");
        assert!(took > 400 * MS, "the server's own limit of 50 ms has ended it: {took:?}");
    });
}

#[test]
fn h143_a_serialization_failure_has_no_effect_and_says_so() {
    let change = "UPDATE latchwork SET asked = asked WHERE k = 'k'";
    for level in ["repeatable read", "serializable"] {
        let setting = format!("default_transaction_isolation = '{level}'");
        let error = meanwhile(&[&setting], change, 0.45);
        assert_nothing_applied(&error, "40001");
    }
}
