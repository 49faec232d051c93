//! Threads that wait for an operation with the GIL released.

use std::cell::Cell;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use latchwork::BlockOn as _;
#[cfg(target_os = "linux")]
use latchwork_store::Origin;
use latchwork_store::clock::boot_time;
use pyo3::exceptions::PySystemExit;
use pyo3::prelude::*;

use crate::greenlets;

/// How late a signal is noticed that another thread has received.
const TICK: Duration = Duration::from_millis(20);

/// How long a call may block an event loop before it warns.
const LONG: Duration = Duration::from_secs(1);

/// A pause between two looks is not shorter.
const SHORTEST: Duration = Duration::from_millis(1);

/// Threads that are inside of the engine, and need the GIL to return.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

/// Those of them that stay there, because the process ends.
static PARKED: AtomicUsize = AtomicUsize::new(0);

/// The process begins to end: its locks are being released.
static BEGINS_TO_END: AtomicBool = AtomicBool::new(false);

/// The process ends: a thread that took the GIL then would be ended within the frames of this library.
static ENDS: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// This thread ends the process.
    static IS_LAST: Cell<bool> = const { Cell::new(false) };
}

/// A thread that is inside of the engine, or makes Python's value of what that has said. The end of the process waits for
/// it: a thread that is ended in between would be unwound through the frames of this library.
pub(crate) struct Inside;

impl Inside {
    fn enter() -> Self {
        INSIDE.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let fewer = |threads: usize| Some(threads.saturating_sub(1));
        let _ = INSIDE.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer);
    }
}

/// Whether threads are inside of the engine, and will return.
pub(crate) fn are_inside() -> bool {
    INSIDE.load(Ordering::SeqCst) > PARKED.load(Ordering::SeqCst)
}

/// From now on a call of another thread than this one and the main one ends its thread.
pub(crate) fn begin_to_end() {
    IS_LAST.set(true);
    BEGINS_TO_END.store(true, Ordering::SeqCst);
}

/// Ends this thread, if the process ends: it is a daemon, which Python ends without a word.
pub(crate) fn end_with_the_process() -> PyResult<()> {
    if !BEGINS_TO_END.load(Ordering::SeqCst) || IS_LAST.get() || is_main_thread() {
        return Ok(());
    }
    Err(PySystemExit::new_err("the process ends"))
}

/// From now on no other thread than the main one returns to Python.
pub(crate) fn let_none_return() {
    ENDS.store(true, Ordering::SeqCst);
}

/// Keeps this thread until the process has ended, if that ends.
fn stay_at_the_end(is_main: bool) {
    if is_main || IS_LAST.get() || !ENDS.load(Ordering::SeqCst) {
        return;
    }
    PARKED.fetch_add(1, Ordering::SeqCst);
    loop {
        std::thread::park();
    }
}

/// After a fork, in the child: the threads of the parent are not here.
#[pyfunction]
pub(crate) fn after_fork() {
    INSIDE.store(0, Ordering::SeqCst);
    PARKED.store(0, Ordering::SeqCst);
    BEGINS_TO_END.store(false, Ordering::SeqCst);
    ENDS.store(false, Ordering::SeqCst);
    crate::counts::after_fork();
}

/// Waits for a future with the GIL released, until `limit` has passed: then the result is `None`. In the main thread,
/// which alone runs Python's handlers of signals, a signal ends the wait if its handler raises. A greenlet lets others
/// run meanwhile.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    future: impl Future<Output = T> + Send,
    limit: Option<Duration>,
) -> PyResult<(Option<T>, Option<Inside>)> {
    if let Some(waiting) = greenlets::waiting(py)? {
        return Ok((greenlets::wait(py, future, limit, &waiting)?, None));
    }
    block(py, future, limit).map(|(done, inside)| (done, Some(inside)))
}

/// As [`wait`], also in a greenlet: the thread does nothing else meanwhile.
pub(crate) fn block<T: Send>(
    py: Python<'_>,
    future: impl Future<Output = T> + Send,
    limit: Option<Duration>,
) -> PyResult<(Option<T>, Inside)> {
    let inside = Inside::enter();
    let done = py.detach(|| {
        let is_main = is_main_thread();
        stay_at_the_end(is_main);
        let begin = boot_time();
        let end = limit.map(|limit| begin.plus(limit));
        let mut long = Some(begin.plus(LONG));
        let check = || {
            let now = boot_time();
            if end.is_some_and(|end| end <= now) {
                return Err(Ended::InTime);
            }
            if long.is_some_and(|long| long <= now) {
                long = None;
                stay_at_the_end(is_main);
                Python::attach(warn_in_loop).map_err(Ended::Raised)?;
            }
            if is_main {
                return Python::attach(|py| py.check_signals()).map_err(Ended::Raised);
            }
            Ok(())
        };
        let every = if is_main { TICK } else { LONG };
        let every = limit.map_or(every, |limit| every.min(limit)).max(SHORTEST);
        let done = future.block_on_interruptible(every, check);
        stay_at_the_end(is_main);
        done
    });
    end_with_the_process()?;
    match done {
        Ok(done) => Ok((Some(done), inside)),
        Err(Ended::InTime) => Ok((None, inside)),
        Err(Ended::Raised(raised)) => Err(raised),
    }
}

/// Why a wait ended before its future.
enum Ended {
    InTime,
    /// By a handler of signals, or by a warning that is an error.
    Raised(PyErr),
}

/// Warns if an event loop runs on this thread: none of its tasks can go on, and one of them may hold the lock.
fn warn_in_loop(py: Python<'_>) -> PyResult<()> {
    py.import("latchwork._loops")?.getattr("warn_if_blocked")?.call0().map(drop)
}

/// Whether this may be Python's main thread. On Linux it is the process's first thread: after a fork another one.
fn is_main_thread() -> bool {
    #[cfg(target_os = "linux")]
    return {
        thread_local! {
            static IS_MAIN: Cell<Option<(Origin, bool)>> = const { Cell::new(None) };
        }
        if let Some((origin, is_main)) = IS_MAIN.get()
            && origin.is_here()
        {
            return is_main;
        }
        let is_main = rustix::thread::gettid() == rustix::process::getpid();
        IS_MAIN.set(Some((Origin::here(), is_main)));
        is_main
    };
    #[cfg(not(target_os = "linux"))]
    true
}
