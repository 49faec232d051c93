//! The task on the caller's runtime that watches a connection.

use std::future::poll_fn;
use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use tokio::io::Interest;
use tokio::runtime::{Handle, Id};

use crate::fork::Origin;

use super::drive::{Drive, Moved};
use super::remember;

/// Which runtime watches a connection.
#[derive(Debug, Default)]
pub(super) struct Near {
    state: Mutex<State>,
    /// A runtime watches it, and is not blocked.
    watches: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    runtime: Option<Id>,
    /// Ends the task.
    waker: Option<Waker>,
    ended: bool,
    /// The runtime that cannot watch, for it has no I/O.
    unfit: Option<Id>,
}

impl Near {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a runtime watches the connection.
    pub(super) fn watches(&self) -> bool {
        self.watches.load(Ordering::SeqCst)
    }

    /// The runtime has left bytes unread, so the far side watches until the runtime runs again.
    pub(super) fn depose(&self) {
        self.watches.store(false, Ordering::SeqCst);
    }

    /// Ends the task, if there is one.
    pub(super) fn stop(&self) {
        let waker = {
            let mut state = self.lock();
            state.ended = true;
            state.waker.take()
        };
        self.watches.store(false, Ordering::SeqCst);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether the runtime of the caller watches the connection. It does from now on if none does
    /// yet.
    pub(super) fn serves_here(drive: &Arc<Drive>) -> bool {
        let Ok(handle) = Handle::try_current() else { return false };
        let id = handle.id();
        if drive.far.runs_on(id) {
            return false;
        }
        let near = &drive.near;
        let mut state = near.lock();
        match state.runtime {
            Some(runtime) => return runtime == id && near.watches(),
            None if state.ended || state.unfit == Some(id) => return false,
            None => {}
        }
        let Some(stream) = drive.door.another().ok().and_then(registered) else {
            state.unfit = Some(id);
            return false;
        };
        state.runtime = Some(id);
        drop(state);
        near.watches.store(true, Ordering::SeqCst);
        let watcher = Watcher::new(drive, stream);
        handle.spawn(watcher.run());
        // The far side need not watch any more; it finds that out when it is woken next.
        true
    }
}

/// The stream in the reactor of this runtime; `None` if it has none.
fn registered(stream: TcpStream) -> Option<tokio::net::TcpStream> {
    // There is no way to ask a runtime whether it has I/O: it panics without.
    catch_unwind(AssertUnwindSafe(|| tokio::net::TcpStream::from_std(stream))).ok()?.ok()
}

/// Watches a connection while its runtime runs.
struct Watcher {
    drive: Weak<Drive>,
    /// `None` only while it is dropped.
    stream: Option<tokio::net::TcpStream>,
    origin: Origin,
}

impl Watcher {
    fn new(drive: &Arc<Drive>, stream: tokio::net::TcpStream) -> Self {
        Self { drive: Arc::downgrade(drive), stream: Some(stream), origin: Origin::here() }
    }

    async fn run(self) {
        poll_fn(|cx| self.poll(cx)).await;
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.origin.is_here() {
            return Poll::Pending;
        }
        let (Some(drive), Some(stream)) = (self.drive.upgrade(), &self.stream) else {
            return Poll::Ready(());
        };
        {
            let mut state = drive.near.lock();
            if state.ended {
                return Poll::Ready(());
            }
            remember(&mut state.waker, cx);
        }
        // It runs, so it is not blocked any more.
        if !drive.near.watches.swap(true, Ordering::SeqCst) {
            drive.door.open();
            if drive.pump() == Moved::Ended {
                return Poll::Ready(());
            }
        }
        read(&drive, stream, cx)
    }
}

/// Moves the connection as long as there is something to read; ready when it has ended.
pub(super) fn read(
    drive: &Arc<Drive>,
    stream: &tokio::net::TcpStream,
    cx: &mut Context<'_>,
) -> Poll<()> {
    while stream.poll_read_ready(cx).is_ready() {
        clear(stream, Interest::READABLE);
        drive.door.open();
        if drive.pump() == Moved::Ended {
            return Poll::Ready(());
        }
    }
    Poll::Pending
}

/// Waits for the next edge from the system.
pub(super) fn clear(stream: &tokio::net::TcpStream, interest: Interest) {
    let _ = stream
        .try_io(interest, || -> std::io::Result<()> { Err(std::io::ErrorKind::WouldBlock.into()) });
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if !self.origin.is_here() {
            // The reactor is shared with the parent, which would lose its registration.
            std::mem::forget(self.stream.take());
            return;
        }
        self.stream = None;
        let Some(drive) = self.drive.upgrade() else { return };
        {
            let mut state = drive.near.lock();
            (state.runtime, state.waker) = (None, None);
        }
        drive.near.watches.store(false, Ordering::SeqCst);
        // What came meanwhile was not read.
        drive.door.open();
        drive.far.wake();
    }
}
