//! Leases are counted by the server's clock as it is when the key's row is locked, not when the transaction began.

use crate::common::*;
use latchwork_services::{PostgresOptions, PostgresServer};
use latchwork_store::{Mode, Renewal};

/// How long somebody's transaction keeps the row.
const KEPT: std::time::Duration = std::time::Duration::from_millis(300);

/// Runs a verb while somebody else has the row of its key.
async fn behind_a_row<T>(server: &PostgresServer, key: &str, verb: impl Future<Output = T>) -> T {
    let client = plain_client(server.port()).await;
    let lock = format!("BEGIN; SELECT FROM latchwork WHERE k = '{key}' FOR UPDATE");
    client.batch_execute(&lock).await.unwrap();
    let ends = async {
        until(server, "SELECT count(*) FROM pg_locks WHERE NOT granted", |n| n != "0").await;
        tokio::time::sleep(KEPT).await;
        client.batch_execute("COMMIT").await.unwrap();
    };
    tokio::join!(verb, ends).0
}

#[test]
fn a_wait_for_a_row_takes_nothing_from_a_lease() {
    let server = server();
    run(async {
        let client = bare(&server.url()).await;
        for (key, mode, table) in
            [("x", Mode::Exclusive, "latchwork"), ("r", Mode::Read, "latchwork_line")]
        {
            let wanted = claim(key).with(|it| {
                it.ttl = 60 * SEC;
                it.mode = mode;
            });
            client.granted(&wanted).await;
            client.released(&wanted).await;
            let begun = server.psql("SELECT clock_timestamp()").unwrap();
            let again = like(&wanted);
            behind_a_row(&server, key, client.acquired(&again)).await;
            let counted = format!(
                "SELECT ends - interval '60 s' - '{begun}' >= interval '{} ms' FROM {table} WHERE k = '{key}'",
                KEPT.as_millis()
            );
            assert_eq!(server.psql(&counted).unwrap(), "t", "{mode:?}");
        }
    });
}

#[test]
fn a_renewal_that_waits_for_a_row_revives_no_lease() {
    let server = server();
    run(async {
        let client = bare(&server.url()).await;
        for (key, mode) in [("x", Mode::Exclusive), ("r", Mode::Read)] {
            let long = claim(key).with(|it| {
                it.ttl = 60 * SEC;
                it.mode = mode;
            });
            client.granted(&long).await;
            assert!(client.held(&long).await);
            let table = if mode == Mode::Read { "latchwork_line" } else { "latchwork" };
            let shorten = format!(
                "UPDATE {table} SET ends = clock_timestamp() + interval '{} ms' WHERE k = '{key}'",
                KEPT.as_millis() / 2
            );
            server.psql(&shorten).unwrap();
            let renews = client.renewed(&long);
            assert_eq!(behind_a_row(&server, key, renews).await, Renewal::Lost, "{mode:?}");
        }
    });
}

/// H193: the row of a key is removed when nobody has used it for an hour, and its last token with it.
#[test]
fn h193_tokens_grow_after_rows_were_removed_and_the_clock_set_back() {
    let server = server_with(&PostgresOptions::new().with_clock(), "");
    let clock = server.clock().unwrap();
    let keys = [("alone", Mode::Exclusive), ("shared", Mode::Read), ("late", Mode::Exclusive)];
    run(async {
        let client = bare(&server.url()).await;
        clock.step_forward(24 * 3_600 * SEC).unwrap();
        let mut tokens = Vec::new();
        for (key, mode) in keys {
            let claim = claim(key).with(|it| it.mode = mode);
            tokens.push(client.granted(&claim).await.token);
            client.released(&claim).await;
        }
        clock.step_forward(2 * 3_600 * SEC).unwrap();
        for _ in 0..2 {
            sweep(&server.url()).await;
        }
        let left = "SELECT count(*) FROM latchwork WHERE k IN ('alone', 'shared', 'late')";
        until(&server, left, |n| n == "0").await;
        clock.step_back(26 * 3_600 * SEC).unwrap();
        // A mark for a try that may still land makes a row as well.
        let mark = "SELECT released FROM latchwork_leave('late', NULL, gen_random_uuid(), 0, '', NULL, 1, 'on')";
        assert_eq!(server.psql(mark).unwrap(), "f");
        for ((key, mode), token) in keys.into_iter().zip(tokens) {
            let again = client.granted(&claim(key).with(|it| it.mode = mode)).await.token;
            assert!(again > token, "{key}: {again} after {token}");
        }
        // Several share a statement.
        let many: Vec<_> = (0..32).map(|n| claim(&format!("k{n}"))).collect();
        let tried = many.iter().map(|claim| client.granted(claim));
        for grant in futures_util::future::join_all(tried).await {
            assert!(grant.token > token_of_all(&server), "{}", grant.token);
        }
    });
}

/// The token that is smaller than all that are given from now on.
fn token_of_all(server: &PostgresServer) -> u64 {
    server.psql("SELECT token - 1 FROM latchwork WHERE k = ''").unwrap().parse().unwrap()
}
