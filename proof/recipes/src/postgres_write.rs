//! A transaction of PostgreSQL under a lock, with the token checked first.

// recipe: postgres-write
use std::time::Duration;

use latchwork::fence::sql::Fences;
use latchwork::{Guard, LockManager};
use tokio_postgres::Client;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Sells one unit and answers how many remain.
pub async fn sell(
    locks: &LockManager,
    db: &mut Client,
    fences: &Fences,
    article: i64,
) -> Result<i64, Failure> {
    let lock = locks.mutex(format!("stock/{article}"));
    let guard = lock.acquire_within(Duration::from_secs(2)).await?;
    let remain = sell_under(&guard, db, fences, article).await?;
    // After the commit. The sale was checked by its token: it stands, whatever the release answers.
    if let Err(error) = guard.release().await {
        tracing::warn!(%error, "sold, but the lock was not released");
    }
    Ok(remain)
}

/// The transaction of a holder.
pub async fn sell_under(
    guard: &Guard,
    db: &mut Client,
    fences: &Fences,
    article: i64,
) -> Result<i64, Failure> {
    let mut transaction = db.transaction().await?;
    // Before the first read. Until the commit, no other token is admitted for this resource.
    fences.check_guard(&mut transaction, guard).await?; // an error drops the transaction, which rolls back
    let read = "SELECT amount FROM stock WHERE id = $1";
    let amount: i64 = transaction.query_one(read, &[&article]).await?.get(0);
    if amount == 0 {
        return Err("sold out".into());
    }
    let write = "UPDATE stock SET amount = $2 WHERE id = $1";
    transaction.execute(write, &[&article, &(amount - 1)]).await?;
    transaction.commit().await?;
    Ok(amount - 1)
}
// end

/// Makes the table of fences, once for each database.
pub async fn prepare(db: &Client) -> Result<Fences, Failure> {
    // recipe: postgres-prepare
    let fences = Fences::new(latchwork::fence::sql::Dialect::PostgreSql, "fences")?;
    db.batch_execute(&fences.create_table()).await?;
    // end
    Ok(fences)
}
