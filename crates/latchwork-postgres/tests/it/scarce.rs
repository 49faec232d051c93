//! H201: the server has no second connection for a holder, whose own connection works.

use crate::common::*;
use latchwork_services::{PgBouncer, PostgresOptions, PostgresServer};
use tokio_postgres::NoTls;

/// A server with a role that may have so many connections, and the role's address.
fn limited(most: i32) -> (PostgresServer, String) {
    let server = server();
    server.psql(&format!("CREATE ROLE app LOGIN CONNECTION LIMIT {most}")).unwrap();
    server.psql("GRANT ALL ON ALL TABLES IN SCHEMA public TO app").unwrap();
    let url = format!("postgres://app@127.0.0.1:{}/postgres", server.port());
    (server, url)
}

/// Holds a key for several of its ttls, and then releases it.
async fn holds(bare: &Bare, meanwhile: impl Future<Output = ()>) {
    let guard = bare.locks().mutex("k").ttl(3 * SEC).acquire().await.unwrap();
    let (lost, ()) = tokio::join!(tokio::time::timeout(8 * SEC, guard.lost()), meanwhile);
    assert!(lost.is_err(), "it is renewed on the connection that there is: {lost:?}");
    guard.release().await.unwrap();
}

#[test]
fn h201_a_role_with_one_connection_keeps_its_lock() {
    let (_server, url) = limited(1);
    run(async { holds(&bare(&url).await, async {}).await });
}

/// After a restart the renewals and the requests race for the one connection.
#[test]
fn h201_a_restart_with_one_connection_costs_no_hold() {
    let (mut server, url) = limited(1);
    run(async {
        let bare = bare(&url).await;
        let restarts = async {
            for _ in 0..2 {
                tokio::time::sleep(1_500 * MS).await;
                server.restart().unwrap();
            }
        };
        holds(&bare, restarts).await;
    });
}

/// Others take all connections that are left, right after the grant.
#[test]
fn h201_a_full_server_costs_no_hold() {
    let options = PostgresOptions::new()
        .setting("max_connections=8")
        .setting("superuser_reserved_connections=3");
    let server = server_with(&options, "");
    server.psql("CREATE ROLE app LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO app").unwrap();
    run(async {
        let url = format!("postgres://app@127.0.0.1:{}/postgres", server.port());
        let bare = bare(&url).await;
        let storm = async {
            let mut others = Vec::new();
            while let Ok((client, connection)) = tokio_postgres::connect(&url, NoTls).await {
                others.push((client, tokio::spawn(connection)));
            }
            assert!(others.len() >= 2, "{}", others.len());
            tokio::time::sleep(8 * SEC).await;
        };
        holds(&bare, storm).await;
    });
}

/// The pooler lets everybody log in, and keeps all but one waiting for the server.
#[test]
fn h201_a_pooler_with_one_session_costs_no_hold() {
    let server = server();
    let bouncer = PgBouncer::start_in_mode(server.port(), 1, "session").unwrap();
    run(async {
        for options in ["", "?pooler=false"] {
            holds(&bare(&format!("{}{options}", bouncer.url())).await, async {}).await;
        }
    });
}
