//! The task on the caller's event loop that watches a connection.

use std::future::poll_fn;
use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker, ready};

use tokio::io::Interest;

use latchwork_store::Origin;

use crate::event_loop::{EventLoop, LoopId, Watched};

use super::drive::{Drive, Moved};
use super::remember;

/// Which runtime watches a connection.
#[derive(Debug, Default)]
pub(super) struct CallerSide {
    state: Mutex<State>,
    /// A runtime watches it, and is not blocked.
    watches: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    runtime: Option<LoopId>,
    /// Ends the task.
    waker: Option<Waker>,
    ended: bool,
    /// The runtime that cannot watch: one of tokio without I/O, or a foreign one that refused.
    unfit: Option<LoopId>,
}

impl CallerSide {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a runtime watches the connection.
    pub(super) fn watches(&self) -> bool {
        self.watches.load(Ordering::SeqCst)
    }

    /// The runtime has left bytes unread, so the background side watches until the runtime runs again.
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
        let Some(here) = EventLoop::current() else { return false };
        let id = here.id();
        if drive.background.runs_on(id) {
            return false;
        }
        let caller = &drive.caller;
        let mut state = caller.lock();
        match state.runtime {
            Some(runtime) if runtime == id && caller.watches() => return true,
            Some(runtime) if runtime == id => {
                // It runs again. A loop that learns only of what is unread does not notice that, as
                // long as the background side reads first.
                let waker = state.waker.clone();
                drop(state);
                if let Some(waker) = waker {
                    waker.wake();
                }
                return false;
            }
            Some(_) => return false,
            None if state.ended || state.unfit == Some(id) => return false,
            None => {}
        }
        let source = drive.door.another().ok().and_then(|stream| Source::on(&here, stream));
        let Some(source) = source else {
            state.unfit = Some(id);
            return false;
        };
        state.runtime = Some(id);
        drop(state);
        caller.watches.store(true, Ordering::SeqCst);
        here.spawn(Watcher::new(drive, source, id).run());
        // The background side need not watch any more; it finds that out when it is woken next.
        true
    }
}

/// The stream in the reactor of this runtime; `None` if it has none.
fn registered(stream: TcpStream) -> Option<tokio::net::TcpStream> {
    // There is no way to ask a runtime whether it has I/O: it panics without.
    catch_unwind(AssertUnwindSafe(|| tokio::net::TcpStream::from_std(stream))).ok()?.ok()
}

/// What sees that there is something to read.
enum Source {
    Runtime(tokio::net::TcpStream),
    Foreign(Box<dyn Watched>),
}

impl Source {
    fn on(here: &EventLoop, stream: TcpStream) -> Option<Self> {
        match here.watch(stream) {
            Ok(watched) => Some(Self::Foreign(watched)),
            Err(stream) => registered(stream).map(Self::Runtime),
        }
    }
}

/// Watches a connection while its runtime runs.
struct Watcher {
    drive: Weak<Drive>,
    /// `None` only while it is dropped.
    source: Option<Source>,
    runtime: LoopId,
    origin: Origin,
}

impl Watcher {
    fn new(drive: &Arc<Drive>, source: Source, runtime: LoopId) -> Self {
        let (drive, origin) = (Arc::downgrade(drive), Origin::here());
        Self { drive, source: Some(source), runtime, origin }
    }

    async fn run(mut self) {
        poll_fn(|cx| self.poll(cx)).await;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.origin.is_here() {
            return Poll::Pending;
        }
        let (Some(drive), Some(source)) = (self.drive.upgrade(), &mut self.source) else {
            return Poll::Ready(());
        };
        {
            let mut state = drive.caller.lock();
            if state.ended {
                return Poll::Ready(());
            }
            remember(&mut state.waker, cx);
        }
        // It runs, so it is not blocked any more.
        if !drive.caller.watches.swap(true, Ordering::SeqCst) {
            drive.door.open();
            if drive.pump() == Moved::Ended {
                return Poll::Ready(());
            }
        }
        let watched = match source {
            Source::Runtime(stream) => return read(&drive, stream, cx),
            Source::Foreign(watched) => watched,
        };
        loop {
            match ready!(watched.poll_readable(cx)) {
                Ok(()) => drive.door.open(),
                Err(_) => {
                    drive.caller.lock().unfit = Some(self.runtime);
                    return Poll::Ready(());
                }
            }
            if drive.pump() == Moved::Ended {
                return Poll::Ready(());
            }
        }
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
            std::mem::forget(self.source.take());
            return;
        }
        self.source = None;
        let Some(drive) = self.drive.upgrade() else { return };
        {
            let mut state = drive.caller.lock();
            (state.runtime, state.waker) = (None, None);
        }
        drive.caller.watches.store(false, Ordering::SeqCst);
        // What came meanwhile was not read.
        drive.door.open();
        drive.background.wake();
    }
}
