//! The clocks of the service: Latchwork's own for leases, tokio's for the patience with connections.

#![expect(
    clippy::disallowed_methods,
    reason = "no validity depends on tokio's timers here: they bound how long a connection may be idle"
)]

use std::future::Future;
use std::time::Duration;

use latchwork::store::clock::wall_time;

/// Milliseconds since 1970 by the wall clock, for people.
pub(crate) fn wall_millis() -> u64 {
    u64::try_from(wall_time().as_millis()).unwrap_or(u64::MAX)
}

/// Runs `future` for at most `limit`. For connections and answers; leases have the boot clock.
pub(crate) async fn at_most<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    tokio::time::timeout(limit, future).await.ok()
}

/// A pause for work in the background. For repeated looks; leases have the boot clock.
pub(crate) async fn pause(length: Duration) {
    tokio::time::sleep(length).await;
}

/// Runs a task of the service on its runtime.
pub(crate) fn spawn<F>(task: F) -> tokio::task::JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(task)
}
