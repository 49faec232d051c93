//! A migration that many replicas want to make when they start.

// recipe: migration
use std::time::Duration;

use latchwork::LockManager;
use latchwork::fence::sql::bigint;
use tokio_postgres::Client;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Brings the schema up to date, and answers how many migrations this process has made.
pub async fn migrate(
    locks: &LockManager,
    db: &mut Client,
    migrations: &[&str],
) -> Result<usize, Failure> {
    // Longer than all migrations take, shorter than the time that the orchestrator gives a start.
    let guard = locks.mutex("shop/schema").acquire_within(Duration::from_secs(60)).await?;
    db.batch_execute(
        "CREATE TABLE IF NOT EXISTS schema
             (one BOOLEAN PRIMARY KEY DEFAULT true, version BIGINT NOT NULL, token BIGINT NOT NULL);
         INSERT INTO schema (version, token) VALUES (0, 0) ON CONFLICT DO NOTHING",
    )
    .await?;
    let (token, mut made) = (bigint(guard.token()), 0);
    for (version, migration) in (1i64..).zip(migrations) {
        let step = db.transaction().await?;
        // The token first, and the version that it finds: under the lock, in the transaction.
        let admit = "UPDATE schema SET token = $1 WHERE token <= $1 RETURNING version";
        let row = step.query_opt(admit, &[&token]).await?;
        let found: i64 = row.ok_or("superseded: another replica migrates")?.get(0);
        if found >= version {
            continue; // made by another replica, or by an earlier release
        }
        step.batch_execute(migration).await?;
        step.execute("UPDATE schema SET version = $1", &[&version]).await?;
        step.commit().await?;
        made += 1;
    }
    // What was made is committed and checked.
    if let Err(error) = guard.release().await {
        tracing::warn!(%error, "migrated, but the lock was not released");
    }
    Ok(made)
}
// end
