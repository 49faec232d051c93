//! Tasks that wait for an answer, polled by the thread that reads the answer.
//!
//! A task on the [`Io`] costs two changes of threads for each answer: its thread has to read the
//! connection as well, and is woken for it. A late answer needs no thread of its own: what it settles
//! takes a microsecond.
//!
//! Measured: with tasks on the `Io` a free cycle of one task over five servers takes 1.5 times the CPU of the
//! client (ADR 0044).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};

use latchwork_store::{Io, Task};

use crate::connection::is_moving_here;

/// Nobody polls it, and nobody has been asked to.
const IDLE: u8 = 0;
/// Somebody will poll it.
const QUEUED: u8 = 1;
/// A thread polls it.
const POLLED: u8 = 2;
/// It was woken while a thread polls it.
const WOKEN: u8 = 3;
/// It has ended.
const OVER: u8 = 4;

/// How often a thread polls it at most because it has woken itself.
const ROUNDS: u32 = 4;

/// Runs a task that mostly waits for answers, to its end.
///
/// It is polled now, on this thread, and afterwards by the thread that reads its answers from a
/// [connection](crate::Drive). If something else wakes it, it is polled where [`Io::spawn`] runs
/// tasks. It must not block; long work belongs in a task of its own.
///
/// In a forked child, the task is neither polled nor dropped.
pub fn finish(io: &Io, task: impl Future<Output = ()> + Send + 'static) {
    if io.origin().is_here() {
        Late::finish(Box::pin(task), io.clone());
    } else {
        std::mem::forget(Box::pin(task));
    }
}

/// See [`finish`].
struct Late {
    task: Mutex<Option<Task>>,
    state: AtomicU8,
    io: Io,
}

impl Late {
    /// Polls the task, and sees to it that it is polled to its end.
    fn finish(task: Task, io: Io) {
        // Of the budget of a task of tokio that happens to poll it, it takes nothing.
        let task: Task = Box::pin(tokio::task::unconstrained(task));
        let this = Self { task: Mutex::new(Some(task)), state: AtomicU8::new(QUEUED), io };
        Arc::new(this).run();
    }

    /// Polls it on the thread of the `Io`. If that does not run any more, the task is dropped.
    fn queue(self: Arc<Self>) {
        let (io, poll) = (self.io.clone(), LatePoll(Some(self)));
        io.spawn(async move { poll.take() });
    }

    fn run(self: Arc<Self>) {
        let waker = Waker::from(self.clone());
        let mut cx = Context::from_waker(&waker);
        for _ in 0..ROUNDS {
            self.state.store(POLLED, Ordering::SeqCst);
            let is_over = {
                let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
                // A panic ends the task, as it ends one on a runtime, and not what this thread does.
                let polled = task.as_mut().map(|task| {
                    catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(&mut cx).is_ready()))
                });
                !matches!(polled, Some(Ok(false)))
            };
            if is_over {
                self.end();
                return;
            }
            let rests = (Ordering::SeqCst, Ordering::SeqCst);
            if self.state.compare_exchange(POLLED, IDLE, rests.0, rests.1).is_ok() {
                return;
            }
        }
        self.state.store(QUEUED, Ordering::SeqCst);
        self.queue();
    }

    fn end(&self) {
        self.state.store(OVER, Ordering::SeqCst);
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(task)));
    }
}

impl Wake for Late {
    fn wake(self: Arc<Self>) {
        let order = (Ordering::SeqCst, Ordering::SeqCst);
        let next = |state| match state {
            IDLE => Some(QUEUED),
            POLLED => Some(WOKEN),
            _ => None,
        };
        if self.state.fetch_update(order.0, order.1, next) != Ok(IDLE) {
            return;
        }
        // A thread that reads answers is one that may do what they bring. Another, as the one that
        // tells the time, is not.
        if is_moving_here() {
            self.run();
        } else {
            self.queue();
        }
    }
}

/// A poll that waits for the thread of the `Io`.
struct LatePoll(Option<Arc<Late>>);

impl LatePoll {
    fn take(mut self) {
        if let Some(late) = self.0.take() {
            late.run();
        }
    }
}

impl Drop for LatePoll {
    fn drop(&mut self) {
        // The `Io` has ended without it. What waits would keep itself by its waker.
        if let Some(late) = self.0.take() {
            late.end();
        }
    }
}
