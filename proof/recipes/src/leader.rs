//! Work of a leader, which must stop when another one leads.

use std::sync::Arc;
use std::time::Duration;

use latchwork::{Election, FencingToken, LockManager};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// One step of work that blocks its thread. It gets the term, for the system that it writes to.
pub type Step = Box<dyn FnOnce(FencingToken) -> Result<(), Failure> + Send>;

// recipe: leader
/// Runs one round after another while this process leads, until `stop`.
pub async fn lead(
    locks: &LockManager,
    me: &str,
    round: impl AsyncFn(FencingToken) -> Result<(), Failure>,
    stop: impl Future<Output = ()>,
) -> Result<(), Failure> {
    let election = locks.election("scheduler").candidate(me).ttl(Duration::from_secs(5));
    let leading = election.lead(async |term| -> Result<(), Failure> {
        loop {
            // After a pause of the machine the term may be in doubt: then nothing is begun. If it is lost,
            // `lead` drops this future at its next await point and campaigns again.
            if term.ensure_held().is_ok() {
                round(term.term()).await?;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    });
    tokio::select! {
        led = leading => led?,
        // Drops the round at its last await point, and resigns in the background.
        () = stop => Ok(()),
    }
}
// end

// recipe: leader-thread
/// Runs steps that block, in one term. A thread cannot be cancelled, so it asks before each step.
pub async fn lead_on_a_thread(election: &Election, steps: Vec<Step>) -> Result<(), Failure> {
    let term = Arc::new(election.campaign().await?);
    let of_thread = term.clone();
    let work = tokio::task::spawn_blocking(move || -> Result<(), Failure> {
        for step in steps {
            of_thread.ensure_held()?; // reads the clock; no I/O
            step(of_thread.term())?;
        }
        Ok(())
    });
    let done = work.await?;
    // Only when the thread has ended: another leader may begin now.
    if let Some(term) = Arc::into_inner(term)
        && let Err(error) = term.resign().await
    {
        tracing::warn!(%error, "the steps have ended, but the leader has not resigned");
    }
    done
}
// end
