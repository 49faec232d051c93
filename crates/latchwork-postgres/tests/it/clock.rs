//! Leases are counted by the server's clock as it is when the key's row is locked, not when the transaction began.

use crate::common::*;
use latchwork_services::PostgresServer;
use latchwork_store::{Mode, Renewal};

/// How long somebody's transaction keeps the row.
const KEPT: std::time::Duration = std::time::Duration::from_millis(1_000);

/// Runs a verb while somebody else has the row of its key.
async fn behind_a_row<T>(server: &PostgresServer, key: &str, verb: impl Future<Output = T>) -> T {
    let client = crate::fence::client(server.port()).await;
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
            behind_a_row(&server, key, client.granted(&again)).await;
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
