//! Waits for the disk without delaying others.
//!
//! A sync takes milliseconds, and on a disk in trouble many seconds. It runs on a thread that is kept
//! for waiting, never on one that renews claims or tells the time, and never while a stripe is
//! locked.

use latchwork_store::{BackendError, BackendErrorKind, Effect, Io};
use tokio::sync::oneshot;

/// Runs `wait` on a thread that may block, and answers what it answered.
///
/// It runs to its end also when nobody waits for the answer any more.
pub(crate) async fn run<T: Send + 'static>(
    io: &Io,
    wait: impl FnOnce() -> T + Send + 'static,
) -> Result<T, BackendError> {
    let (tell, told) = oneshot::channel();
    #[expect(clippy::disallowed_methods, reason = "a sync cannot be waited for in another way")]
    io.spawn(async move {
        // Nobody may be there to be told.
        drop(tokio::task::spawn_blocking(move || drop(tell.send(wait()))));
    });
    told.await.map_err(|_| {
        BackendError::new(
            BackendErrorKind::Unreachable,
            Effect::Unknown,
            "the lock manager was dropped before the disk answered",
        )
        .next_step("keep the lock manager until all its locks are released")
    })
}
