//! The clocks of the service: Latchwork's own for leases, tokio's for the patience with connections.

#![expect(
    clippy::disallowed_methods,
    reason = "no validity depends on tokio's timers here: they bound how long a connection may be idle"
)]

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use latchwork_store::clock::wall_time;

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

/// A length of time that is polled by hand. For connections; leases have the boot clock.
pub(crate) struct Timeout(Pin<Box<tokio::time::Sleep>>);

impl Timeout {
    pub(crate) fn after(length: Duration) -> Self {
        Self(Box::pin(tokio::time::sleep(length)))
    }

    /// Ready when the time is over.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(context)
    }
}

/// Runs a task of the service on its runtime.
pub(crate) fn spawn<F>(task: F) -> tokio::task::JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(task)
}
