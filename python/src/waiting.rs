//! Threads that wait for an operation with the GIL released.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use latchwork::BlockOn as _;
use latchwork::store::clock::boot_time;
use pyo3::prelude::*;

/// How late a signal is noticed that another thread has received.
const TICK: Duration = Duration::from_millis(20);

/// A pause between two looks is not shorter.
const SHORTEST: Duration = Duration::from_millis(1);

/// Threads that are inside of the engine, and need the GIL to return.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

struct Inside;

impl Inside {
    fn enter() -> Self {
        INSIDE.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whether threads are inside of the engine.
pub(crate) fn are_inside() -> bool {
    INSIDE.load(Ordering::SeqCst) != 0
}

/// Waits for a future with the GIL released, until `limit` has passed: then the result is `None`. In the main thread,
/// which alone runs Python's handlers of signals, a signal ends the wait if its handler raises.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    future: impl Future<Output = T> + Send,
    limit: Option<Duration>,
) -> PyResult<Option<T>> {
    let inside = Inside::enter();
    let done = py.detach(|| {
        let is_main = is_main_thread();
        if !is_main && limit.is_none() {
            return Ok(future.block_on());
        }
        let end = limit.map(|limit| boot_time().plus(limit));
        let check = || {
            if end.is_some_and(|end| end <= boot_time()) {
                return Err(Ended::InTime);
            }
            if is_main {
                return Python::attach(|py| py.check_signals()).map_err(Ended::BySignal);
            }
            Ok(())
        };
        let every = if is_main { TICK } else { limit.unwrap_or(TICK) };
        let every = limit.map_or(every, |limit| every.min(limit)).max(SHORTEST);
        future.block_on_interruptible(every, check)
    });
    drop(inside);
    match done {
        Ok(done) => Ok(Some(done)),
        Err(Ended::InTime) => Ok(None),
        Err(Ended::BySignal(raised)) => Err(raised),
    }
}

/// Why a wait ended before its future.
enum Ended {
    InTime,
    BySignal(PyErr),
}

/// Whether this may be Python's main thread. On Linux it is the process's first thread.
fn is_main_thread() -> bool {
    #[cfg(target_os = "linux")]
    return rustix::thread::gettid() == rustix::process::getpid();
    #[cfg(not(target_os = "linux"))]
    true
}
