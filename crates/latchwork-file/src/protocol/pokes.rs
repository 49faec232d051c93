//! Reads the pokes in this session's wake file.
//!
//! - A thread that blocks reads them itself, by the doorbell.
//! - A task on the caller's runtime reads them for those that wait there, so a poke wakes one thread. The
//!   first runtime that waits has the task, until it ends.
//! - The backend's own task reads them for everybody else: for other runtimes, for none, and for a runtime
//!   that does not run while somebody waits for it.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use latchwork_store::{Doorbell, Moment, Origin};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe::Receiver;
use tokio::runtime::{Handle, Id};

use crate::protocol::shared::Shared;
use crate::protocol::wakeup::POLL;

/// The bell of this session, for threads that listen by themselves.
pub(crate) fn doorbell(shared: &Arc<Shared>) -> Doorbell {
    let weak = Arc::downgrade(shared);
    Doorbell::new(shared.wake().clone(), move || {
        if let Some(shared) = weak.upgrade() {
            shared.wakeups.take_pokes(|bytes| Ok(rustix::io::read(shared.wake(), bytes)?));
        }
    })
}

/// Has the pokes of this session read for the caller, a task, which cannot read them itself.
pub(crate) fn read_for_caller(shared: &Arc<Shared>) {
    if !CallerLoop::serves_here(shared) {
        read_by_io(shared);
    }
}

/// Has the pokes of this session read until the backend is gone.
fn read_by_io(shared: &Arc<Shared>) {
    // The pipe does not tell the end: anyone may read it who attends to the doorbell.
    let Some(stopped) = shared.wakeups.begin_reading() else { return };
    let weak = Arc::downgrade(shared);
    let wake = shared.wake().try_clone();
    shared.io.spawn(async move {
        let reading = async {
            match wake.and_then(Receiver::from_owned_fd) {
                Ok(wake) => read_from(weak, wake).await,
                Err(_) => poll_all(weak).await,
            }
        };
        tokio::select! {
            _ = stopped => {}
            () = reading => {}
        }
    });
}

async fn read_from(shared: Weak<Shared>, wake: Receiver) {
    loop {
        if wake.readable().await.is_err() {
            return poll_all(shared).await;
        }
        let Some(shared) = shared.upgrade() else { return };
        if !shared.wakeups.take_pokes(|bytes| wake.try_read(bytes)) {
            return;
        }
    }
}

/// Lets all waiters poll, because the runtime's poller has no place.
async fn poll_all(shared: Weak<Shared>) {
    loop {
        let Some(pause) = shared.upgrade().map(|s| {
            s.note_polling();
            s.wakeups.wake_all();
            s.io.sleep(POLL)
        }) else {
            return;
        };
        pause.await;
    }
}

/// In this time a runtime that runs has polled a task that was woken.
const RUNS: Duration = Duration::from_millis(20);

/// A runtime is not asked more often whether it runs.
const ASK: Duration = Duration::from_secs(1);

/// The runtime of a caller that reads the pokes.
#[derive(Debug, Default)]
pub(crate) struct CallerLoop {
    state: Mutex<State>,
    /// Its task was polled since it was asked.
    ran: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    runtime: Option<Id>,
    /// Of its task.
    waker: Option<Waker>,
    asked_at: Option<Moment>,
    /// The runtime that cannot read, for it has no I/O.
    unfit: Option<Id>,
    ended: bool,
}

impl CallerLoop {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the runtime of the caller reads the pokes. It does from now on if none does yet.
    fn serves_here(shared: &Arc<Shared>) -> bool {
        let Ok(handle) = Handle::try_current() else { return false };
        let id = handle.id();
        let caller = &shared.caller;
        let now = shared.io.now();
        let mut state = caller.lock();
        let mut registered = None;
        match state.runtime {
            Some(runtime) if runtime != id => return false,
            Some(_) if state.asked_at.is_some_and(|at| now.since(at) < ASK) => return true,
            Some(_) => {}
            None if state.ended || state.unfit == Some(id) => return false,
            None => {
                registered = register(shared.wake().clone());
                if registered.is_none() {
                    state.unfit = Some(id);
                    return false;
                }
                state.runtime = Some(id);
            }
        }
        state.asked_at = Some(now);
        caller.ran.store(false, Ordering::SeqCst);
        let waker = state.waker.clone();
        // A runtime that is about to end drops its tasks at once.
        drop(state);
        if let Some(wake) = registered {
            let shared = Arc::downgrade(shared);
            let task = Task { shared, wake: Some(wake), origin: Origin::here() };
            handle.spawn(async move { poll_fn(|cx| task.poll(cx)).await });
        } else if let Some(waker) = waker {
            waker.wake();
        }
        check(shared);
        true
    }

    /// Ends the task, if there is one.
    pub(crate) fn end(&self) {
        let waker = {
            let mut state = self.lock();
            state.ended = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Has the pokes read by the backend's own task if the caller's runtime does not run.
fn check(shared: &Arc<Shared>) {
    let weak = Arc::downgrade(shared);
    let sleep = shared.io.sleep(RUNS);
    shared.io.spawn(async move {
        sleep.await;
        let Some(shared) = weak.upgrade() else { return };
        if !shared.caller.ran.load(Ordering::SeqCst) {
            read_by_io(&shared);
        }
    });
}

/// A descriptor in the reactor of this runtime; `None` if it has none.
#[allow(
    deprecated,
    reason = "sound for types that keep their descriptor; the replacement is unsafe and newer than \
              the tokio asked for"
)]
pub(crate) fn register<T: AsRawFd>(owner: T) -> Option<AsyncFd<T>> {
    // There is no way to ask a runtime whether it has I/O: it panics without.
    let register = || AsyncFd::with_interest(owner, Interest::READABLE);
    catch_unwind(AssertUnwindSafe(register)).ok()?.ok()
}

/// Reads the pokes while its runtime runs.
struct Task {
    shared: Weak<Shared>,
    /// `None` only while it is dropped.
    wake: Option<AsyncFd<Arc<OwnedFd>>>,
    origin: Origin,
}

impl Task {
    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.origin.is_here() {
            return Poll::Pending;
        }
        let (Some(shared), Some(wake)) = (self.shared.upgrade(), &self.wake) else {
            return Poll::Ready(());
        };
        {
            let mut state = shared.caller.lock();
            if state.ended {
                return Poll::Ready(());
            }
            if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                state.waker = Some(cx.waker().clone());
            }
        }
        shared.caller.ran.store(true, Ordering::SeqCst);
        while let Poll::Ready(Ok(mut ready)) = wake.poll_read_ready(cx) {
            let go_on = shared.wakeups.take_pokes(|bytes| {
                let read = ready.try_io(|wake| Ok(rustix::io::read(wake.get_ref(), bytes)?));
                read.unwrap_or_else(|_| Err(io::ErrorKind::WouldBlock.into()))
            });
            if !go_on {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if !self.origin.is_here() {
            // The reactor is shared with the parent, which would lose its registration.
            std::mem::forget(self.wake.take());
            return;
        }
        self.wake = None;
        let Some(shared) = self.shared.upgrade() else { return };
        let ended = {
            let mut state = shared.caller.lock();
            (state.runtime, state.waker, state.asked_at) = (None, None, None);
            state.ended
        };
        if !ended {
            // Somebody may wait who was polled here and is now polled nowhere.
            read_by_io(&shared);
        }
    }
}
