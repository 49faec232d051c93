//! Waits for the disk without delaying others.
//!
//! A sync takes milliseconds, and on a disk in trouble many seconds. It runs on a thread of its own, not on
//! one that renews claims or tells the time, and never while a stripe is locked.

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
    io.spawn(async move {
        // The caller may have stopped waiting.
        on_a_thread(move || drop(tell.send(wait())));
    });
    told.await.map_err(|_| {
        BackendError::new(
            BackendErrorKind::Unreachable,
            Effect::Unknown,
            "the lock manager was dropped before the disk answered",
        )
        .with_next_step("keep the lock manager until all its locks are released")
    })
}

/// Runs `work` on a thread of its own. If the system grants none, because a limit is reached while locks are
/// held, it runs here: late renewals are better than work that is never done.
fn on_a_thread<F: FnOnce() + Send + 'static>(work: F) {
    let (hand, taken) = std::sync::mpsc::sync_channel::<F>(1);
    let started = std::thread::Builder::new().name("latchwork-disk".into()).spawn(move || {
        // It fails if the work is done elsewhere.
        if let Ok(work) = taken.recv() {
            work();
        }
    });
    match started {
        Ok(_) => drop(hand.send(work)),
        Err(_) => work(),
    }
}
