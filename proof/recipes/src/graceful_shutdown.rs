//! The end of a process that holds locks.

// recipe: graceful-shutdown
use std::pin::pin;
use std::time::Duration;

use latchwork::{Guard, LockManager};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What closing the locks may take.
const CLOSE: Duration = Duration::from_secs(5);

/// Is cancelled by SIGTERM.
pub fn stop_on_sigterm() -> Result<CancellationToken, Failure> {
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = CancellationToken::new();
    let told = stop.clone();
    tokio::spawn(async move {
        terminate.recv().await;
        told.cancel();
    });
    Ok(stop)
}

/// Does jobs until it is told to stop. A job that is under way then may take `finish` longer.
pub async fn serve(
    locks: &LockManager,
    mut jobs: mpsc::Receiver<String>,
    work: impl AsyncFn(&Guard, &str) -> Result<(), Failure>,
    stop: CancellationToken,
    finish: Duration,
) -> Result<(), Failure> {
    // 1. Take no more work. A dropped wait leaves nothing behind in the store.
    while let Some(Some(job)) = stop.run_until_cancelled(jobs.recv()).await {
        let lock = locks.mutex(format!("job/{job}"));
        let Some(guard) = stop.run_until_cancelled(lock.acquire()).await else { break };
        let guard = guard?;
        // 2. Finish what was begun, or give it up in time.
        let done = {
            let mut doing = pin!(guard.run(work(&guard, &job)));
            tokio::select! {
                done = &mut doing => Some(done),
                () = stop.cancelled() => tokio::time::timeout(finish, doing).await.ok(),
            }
        };
        match done {
            Some(Ok(Ok(()))) => {}
            Some(Ok(Err(error))) => tracing::error!(%error, job, "failed"),
            Some(Err(lost)) => tracing::warn!(%lost, job, "lost; the next holder does it"),
            None => tracing::warn!(job, "given up; the next holder does it"),
        }
        // 3. Release what is held: the next holder need not wait for the ttl.
        if let Err(error) = guard.release().await {
            tracing::warn!(%error, job, "not released");
        }
    }
    // 4. Wait for the releases in the background, but not for ever.
    if tokio::time::timeout(CLOSE, locks.close()).await.is_err() {
        tracing::warn!("not all locks were released; they end with their ttl");
    }
    Ok(())
}
// end
