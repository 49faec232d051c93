//! Data in Redis that is read and written under a lock, with the token checked at both.

// recipe: redis-write
use std::time::Duration;

use latchwork::LockManager;
use latchwork_redis::fence;
use redis::Script;
use redis::aio::MultiplexedConnection;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Replaces a document by what `change` makes of it.
pub async fn update(
    locks: &LockManager,
    redis: &mut MultiplexedConnection,
    id: &str,
    change: impl AsyncFnOnce(Option<String>) -> Result<String, Failure>,
) -> Result<(), Failure> {
    let lock = locks.mutex(format!("document/{id}"));
    let guard = lock.acquire_within(Duration::from_secs(2)).await?;
    // The token as text: it exceeds what a number in Lua can hold.
    let token = guard.token().to_string();
    // The same hash tag, so that a Cluster keeps both keys on one server.
    let (seen, data) = (format!("{{document/{id}}}:fence"), format!("{{document/{id}}}"));

    // The read checks the token too: from then on, no earlier holder can write.
    let read = Script::new(&fence::script("return redis.call('GET', KEYS[2])"));
    let old = read.key(&seen).key(&data).arg(&token).invoke_async(redis).await;
    let new = change(old.map_err(refused)?).await?;
    let write = Script::new(&fence::set());
    let written = write.key(&seen).key(&data).arg(&token).arg(new).invoke_async::<()>(redis).await;
    written.map_err(refused)?;

    if let Err(error) = guard.release().await {
        tracing::warn!(%error, "written, but the lock was not released");
    }
    Ok(())
}

fn refused(error: redis::RedisError) -> Failure {
    match fence::refusal(&error.to_string()) {
        // Nothing was written by this call.
        Some(fenced) => format!("superseded by another holder: {fenced}").into(),
        // Whether a write that was not answered took effect is not known: read, then decide.
        None => error.into(),
    }
}
// end
