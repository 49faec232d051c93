//! The check of a token in transactions of sqlx.

use crate::common::*;
use crate::fence::{fence, stopped_between_check_and_commit};
use latchwork_postgres::PostgresConfig;
use latchwork_postgres::fence::Fence;
use latchwork_store::FencingToken;
use sqlx::PgPool;

#[test]
fn a_smaller_token_is_refused_in_a_transaction_of_sqlx() {
    let server = server();
    run(async {
        let pool = PgPool::connect(&server.url()).await.unwrap();
        let fence = Fence::new(&PostgresConfig::parse(&server.url()).unwrap());
        let token = FencingToken::from_grant;
        let mut transaction = pool.begin().await.unwrap();
        fence.check(&mut transaction, "stock", token(2)).await.unwrap();
        transaction.commit().await.unwrap();
        let mut transaction = pool.begin().await.unwrap();
        let error = fence.check(&mut transaction, "stock", token(1)).await.unwrap_err();
        assert_eq!(error.refused().unwrap().newest, token(2));
        transaction.rollback().await.unwrap();
        let store = bare(&server.url()).await;
        let guard = store.locks().mutex("stock").acquire().await.unwrap();
        let mut transaction = pool.begin().await.unwrap();
        latchwork_postgres::fence(&mut transaction, &guard).await.unwrap();
        transaction.rollback().await.unwrap();
        let said = server.psql("SELECT token FROM latchwork_fence").unwrap();
        assert_eq!(said, token(2).get().to_string());
        pool.close().await;
    });
}

/// The old holder, with sqlx: checks, writes, says so, waits for a word, and commits.
fn be_the_old_holder(role: &str) {
    let (port, at) = role.split_once(' ').unwrap();
    let port: u16 = port.parse().unwrap();
    run(async {
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
        let pool = PgPool::connect(&url).await.unwrap();
        let mut transaction = pool.begin().await.unwrap();
        let level = format!("SET TRANSACTION ISOLATION LEVEL {at}");
        sqlx::query(&level).execute(&mut *transaction).await.unwrap();
        fence(port).check(&mut transaction, "stock", FencingToken::from_grant(1)).await.unwrap();
        let sale = "UPDATE stock SET amount = amount - 1";
        sqlx::query(sale).execute(&mut *transaction).await.unwrap();
        println!("\nchecked");
        std::io::stdin().read_line(&mut String::new()).unwrap();
        println!("\nsold {}", transaction.commit().await.is_ok());
    });
}

/// H154 with sqlx.
#[test]
fn h154_a_stopped_holder_with_sqlx_cannot_commit() {
    let test = "fence_sqlx::h154_a_stopped_holder_with_sqlx_cannot_commit";
    stopped_between_check_and_commit("read committed", test, be_the_old_holder);
}

/// H154 with sqlx, at the strictest level.
#[test]
fn h154_a_stopped_holder_with_sqlx_cannot_serialize() {
    let test = "fence_sqlx::h154_a_stopped_holder_with_sqlx_cannot_serialize";
    stopped_between_check_and_commit("serializable", test, be_the_old_holder);
}
