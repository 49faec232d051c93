//! Latchwork's own threads: renewals do not depend on the user's runtime, and the timer does not
//! depend on a store.

#![expect(clippy::disallowed_methods, reason = "the module that starts threads")]

use std::fmt;
use std::io::ErrorKind::PermissionDenied;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

use crate::runtime::timer::{SystemClock, Timers};
use crate::runtime::workers::{self, Workers};
use latchwork_store::{Error, ErrorKind, Io};
use latchwork_wire::system::{check_for_runtime, refusal_step};

/// How long the threads go on after its driver was dropped, for releases that are under way.
const LINGER: Duration = Duration::from_millis(250);
/// How often tasks are let run before the thread ends.
const GOODBYES: u32 = 4;

/// Latchwork's own threads: a timer, and a runtime for renewals, background releases and
/// connections.
///
/// So a user runtime that blocks, or that has only one thread, does not delay renewals. The timer
/// thread does nothing else, so the end of a hold is reported in time even if a store blocks. For a
/// store whose verbs block ([`Backend::blocks`](latchwork_store::Backend::blocks)) up to four more
/// threads poll them, started when they are needed and ended when they are idle.
///
/// Dropping the driver never blocks: the threads finish the releases in flight, for at most 250 ms,
/// and end.
pub struct Driver {
    io: Io,
    stop: Option<Stop>,
    work: Arc<Work>,
}

/// Ends what a driver runs on.
type Stop = Box<dyn FnOnce() + Send + Sync>;

/// Tasks that a stopping driver waits for.
#[derive(Debug, Default)]
pub(crate) struct Work {
    state: Mutex<WorkState>,
    idle: tokio::sync::Notify,
}

#[derive(Debug, Default)]
struct WorkState {
    open: usize,
}

/// One piece of work under way; dropping it tells that it has ended, in whatever way.
#[derive(Debug)]
pub(crate) struct WorkTicket(Arc<Work>);

impl Work {
    fn lock(&self) -> std::sync::MutexGuard<'_, WorkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(self: &Arc<Self>) -> WorkTicket {
        self.lock().open += 1;
        WorkTicket(self.clone())
    }

    /// Completes when nothing is under way.
    pub(crate) async fn wait_idle(&self) {
        loop {
            let idle = self.idle.notified();
            tokio::pin!(idle);
            // Enlist before looking, or an end in between would go unnoticed.
            idle.as_mut().enable();
            if self.lock().open == 0 {
                return;
            }
            idle.await;
        }
    }
}

impl Drop for WorkTicket {
    fn drop(&mut self) {
        let open = {
            let mut state = self.0.lock();
            state.open -= 1;
            state.open
        };
        // Not under the lock: a woken task may look at once.
        if open == 0 {
            self.0.idle.notify_waiters();
        }
    }
}

impl Driver {
    /// Starts the threads.
    ///
    /// # Errors
    ///
    /// `Unreachable` if the system gives no threads or no descriptors for them, `Unsupported` if it forbids what
    /// they need.
    pub fn start() -> Result<Self, Error> {
        let failed = |what: &str, e: std::io::Error| {
            // What a filter refuses is refused for good; a limit may be left in a moment.
            let kind = match e.kind() {
                PermissionDenied | std::io::ErrorKind::Unsupported => ErrorKind::Unsupported,
                _ => ErrorKind::Unreachable,
            };
            Error::new(kind, format!("driver: cannot {what}: {e}")).with_next_step(refusal_step(&e))
        };
        check_for_runtime().map_err(|e| failed("make a runtime", e))?;
        let timers = Timers::new().map_err(|e| failed("make a timer", e))?;
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| failed("make a runtime", e))?;
        let handle: Handle = runtime.handle().clone();
        let runtime = Background(Some(runtime));
        let (stop, stopped) = oneshot::channel::<()>();
        let work = Arc::new(Work::default());
        let (clock, under_way) = (timers.clone(), work.clone());
        let ticking = timers.clone();
        start_thread("latchwork-time", move || ticking.run())
            .map_err(|e| failed("start a thread", e))?;
        let workers =
            Workers::new(workers::MOST, |work| start_thread("latchwork-verbs", work).is_ok());
        let (ending, stopping) = (timers.clone(), workers.clone());
        let started = start_thread("latchwork", move || {
            runtime.block_on(async move {
                // Both outcomes mean that the driver is gone.
                let _ = stopped.await;
                let _ = tokio::time::timeout(LINGER, under_way.wait_idle()).await;
                // A task that was asked to end may close its connection, if that takes no time.
                for _ in 0..GOODBYES {
                    tokio::task::yield_now().await;
                }
            });
            stopping.close();
            drop(runtime);
            ending.stop();
        });
        if let Err(error) = started {
            timers.stop();
            return Err(failed("start a thread", error));
        }
        let (own, last_resort) = (handle.clone(), handle);
        let io = Io::new(move |task| drop(own.spawn(task)), Arc::new(SystemClock::new(clock)))
            .with_workers(move |task| {
                if let Err(task) = workers.spawn(task) {
                    last_resort.spawn(task);
                }
            });
        // It fails if the thread has ended.
        let stop: Stop = Box::new(move || {
            let _ = stop.send(());
        });
        Ok(Self { io, stop: Some(stop), work })
    }

    /// A driver on threads that are there; `stop` is called when the driver is dropped.
    #[cfg(feature = "testing")]
    pub(crate) fn on(io: Io, stop: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self { io, stop: Some(Box::new(stop)), work: Arc::default() }
    }

    /// Returns the `Io` of these threads, to connect a backend with.
    pub fn io(&self) -> Io {
        self.io.clone()
    }

    pub(crate) fn work(&self) -> Arc<Work> {
        self.work.clone()
    }
}

/// A runtime that may be dropped anywhere: in an async context, tokio panics where one is dropped as it is. That
/// would be so if the system gave no thread for it.
struct Background(Option<Runtime>);

impl Background {
    fn block_on(&self, work: impl Future<Output = ()>) {
        if let Some(runtime) = &self.0 {
            runtime.block_on(work);
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let Some(stop) = self.stop.take() else { return };
        if self.io.origin().is_here() {
            stop();
        } else {
            // The thread that it would wake is the parent's.
            std::mem::forget(stop);
        }
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("io", &self.io).finish_non_exhaustive()
    }
}

pub(crate) fn start_thread(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(work).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_serve_a_caller_without_a_runtime() {
        let driver = Driver::start().unwrap();
        let io = driver.io();
        let (sender, receiver) = std::sync::mpsc::channel();
        let start = io.now();
        for (name, millis) in [("late", 40), ("early", 10)] {
            let (sender, io) = (sender.clone(), io.clone());
            let sleep = io.sleep(Duration::from_millis(millis));
            io.spawn(async move {
                sleep.await;
                sender.send(name).unwrap();
            });
        }
        assert_eq!(receiver.recv().unwrap(), "early");
        assert_eq!(receiver.recv().unwrap(), "late");
        assert!(io.now().since(start) >= Duration::from_millis(40));
    }

    #[test]
    fn within_cuts_a_future_that_does_not_end() {
        let driver = Driver::start().unwrap();
        let io = driver.io();
        let (sender, receiver) = std::sync::mpsc::channel();
        let inner = io.clone();
        io.spawn(async move {
            let never = std::future::pending::<()>();
            let cut = inner.within(Duration::from_millis(5), never).await;
            let done = inner.within(Duration::from_millis(5), std::future::ready(7)).await;
            sender.send((cut, done)).unwrap();
        });
        assert_eq!(receiver.recv().unwrap(), (None, Some(7)));
    }

    #[test]
    fn a_task_for_a_driver_that_is_gone_is_dropped() {
        let driver = Driver::start().unwrap();
        let io = driver.io();
        drop(driver);
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        // Whether it still runs or not, it must not panic and must not be kept.
        io.spawn(async move { drop(sender) });
        assert!(receiver.recv().is_err());
    }
}
