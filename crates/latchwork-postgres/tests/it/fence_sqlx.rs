//! The check of a token in transactions of sqlx.

use crate::common::*;
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
