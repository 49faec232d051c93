//! Sales in transactions of PostgreSQL.

use latchwork_recipes::postgres_write::{prepare, sell, sell_under};

use crate::common::{client, database, number, take_over, two_processes};

const AMOUNT: &str = "SELECT amount FROM stock";

#[tokio::test]
async fn two_processes_sell_exactly_the_stock() {
    let (server, (one, two)) = (database().await, two_processes("postgres-two").await);
    let (mut first, mut second) = (client(&server).await, client(&server).await);
    let fences = prepare(&first).await.unwrap();
    let (mut sold, mut other) = (0, 0);
    tokio::join!(
        async {
            while sell(&one, &mut first, &fences, 42).await.is_ok() {
                sold += 1
            }
        },
        async {
            while sell(&two, &mut second, &fences, 42).await.is_ok() {
                other += 1
            }
        },
    );
    assert_eq!((sold + other, number(&first, AMOUNT).await), (20, 0));
}

/// The lock passes on before the transaction begins, as after a pause of the process.
#[tokio::test]
async fn a_holder_that_was_superseded_writes_nothing() {
    let (server, (one, two)) = (database().await, two_processes("postgres-late").await);
    let (mut first, mut second) = (client(&server).await, client(&server).await);
    let fences = prepare(&first).await.unwrap();
    let late = one.mutex("stock/42").acquire().await.unwrap();
    let next = take_over(&two, "stock/42").await;
    assert_eq!(sell_under(&next, &mut second, &fences, 42).await.unwrap(), 19);
    let refused = sell_under(&late, &mut first, &fences, 42).await.unwrap_err();
    assert!(refused.to_string().contains("superseded"), "{refused}");
    assert_eq!(number(&first, AMOUNT).await, 19);
}
