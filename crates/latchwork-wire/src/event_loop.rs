//! The event loop that polls a caller's future: a runtime of tokio, or a foreign loop that lends its thread.
//!
//! A request is cheapest where its caller waits: the thread that sends also reads the answer. Stores
//! find out which loop polls a future by [`EventLoop::current`]. An executor that is not tokio's, such
//! as the loop of another language, says so by [`EventLoop::enter`] while it polls, and does for the
//! stores what tokio does by itself: it polls their tasks, and watches their connections.

use std::cell::RefCell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::marker::PhantomData;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use latchwork_store::Task;
use tokio::runtime::{Handle, Id};

/// Lets the tasks that are ready run first, on any executor. Unlike tokio's `yield_now` it does not let the
/// runtime ask the system for events before that, which would be a system call for each batch.
pub async fn yield_now() {
    let mut is_first = true;
    poll_fn(|cx| {
        if std::mem::take(&mut is_first) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}

/// An event loop that is not tokio's, and lends its thread to the stores whose futures it polls.
///
/// Both methods are called on any thread, also while the loop's thread polls one of its tasks, and with
/// locks of a store held. So they only note what is to be done: they do not call back, and do not wait
/// for anything that may call Latchwork.
///
/// Nothing depends on a loop that is blocked or has ended: what keeps holds alive runs on Latchwork's
/// own threads, and these read what the loop leaves unread.
pub trait ForeignLoop: Send + Sync + 'static {
    /// Has a task polled on the loop's thread until it ends, inside of [`EventLoop::enter`] and after all
    /// that is ready to run. A task of a loop that ends is dropped.
    fn spawn(&self, task: Task);

    /// Watches a connection until the returned value is dropped. The descriptor belongs to the loop; the
    /// bytes are read by others.
    fn watch(&self, stream: TcpStream) -> Box<dyn Watched>;
}

/// A connection that a foreign loop watches; see [`ForeignLoop::watch`].
pub trait Watched: Send {
    /// Completes once for each time at which the loop has seen something to read, or the end.
    ///
    /// # Errors
    ///
    /// If the loop cannot watch the connection.
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// The event loop that polls a future: a runtime of tokio, or a [`ForeignLoop`].
#[derive(Clone)]
pub struct EventLoop(Kind);

#[derive(Clone)]
enum Kind {
    Runtime(Handle),
    Foreign(u64, Arc<dyn ForeignLoop>),
}

/// Tells event loops apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopId(Number);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Number {
    Runtime(Id),
    Foreign(u64),
}

thread_local! {
    /// What polls on this thread, if it is not a runtime of tokio.
    static ENTERED: RefCell<Option<Poller>> = const { RefCell::new(None) };
}

#[derive(Debug, Clone)]
enum Poller {
    Foreign(EventLoop),
    /// The thread itself, which blocks meanwhile.
    Blocked,
}

impl EventLoop {
    /// Introduces a loop that is not tokio's. Call it once for each loop, and keep the value.
    pub fn foreign(foreign: Arc<dyn ForeignLoop>) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(Kind::Foreign(LAST.fetch_add(1, Ordering::Relaxed), foreign))
    }

    /// Returns the loop that polls on this thread, if there is one.
    pub fn current() -> Option<Self> {
        // A thread that ends has none.
        match ENTERED.try_with(|entered| entered.borrow().clone()).ok().flatten() {
            Some(Poller::Foreign(foreign)) => Some(foreign),
            Some(Poller::Blocked) => None,
            None => Some(Self(Kind::Runtime(Handle::try_current().ok()?))),
        }
    }

    /// Makes this thread have no current loop until the returned value is dropped. A thread that blocks for a future calls
    /// it around each poll: a runtime that it has entered may be driven by nobody.
    pub fn leave() -> Entered {
        Entered { before: ENTERED.replace(Some(Poller::Blocked)), here: PhantomData }
    }

    /// Makes it the current loop of this thread until the returned value is dropped. Call it around each
    /// poll of a future, and around nothing else: what blocks the thread must not rely on its loop.
    ///
    /// A runtime of tokio is entered by its own means.
    pub fn enter(&self) -> Entered {
        let entered = match self.0 {
            Kind::Runtime(_) => None,
            Kind::Foreign(..) => Some(Poller::Foreign(self.clone())),
        };
        Entered { before: ENTERED.replace(entered), here: PhantomData }
    }

    /// Returns what tells it apart from other loops.
    pub fn id(&self) -> LoopId {
        LoopId(match &self.0 {
            Kind::Runtime(handle) => Number::Runtime(handle.id()),
            Kind::Foreign(number, _) => Number::Foreign(*number),
        })
    }

    /// Has the loop poll a task, which is dropped if the loop ends first.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match &self.0 {
            Kind::Runtime(handle) => drop(handle.spawn(task)),
            Kind::Foreign(_, foreign) => foreign.spawn(Box::pin(task)),
        }
    }

    /// Has a foreign loop watch a connection. For a runtime of tokio, returns the connection.
    pub(crate) fn watch(&self, stream: TcpStream) -> Result<Box<dyn Watched>, TcpStream> {
        match &self.0 {
            Kind::Runtime(_) => Err(stream),
            Kind::Foreign(_, foreign) => Ok(foreign.watch(stream)),
        }
    }
}

impl fmt::Debug for EventLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EventLoop").field(&self.id()).finish()
    }
}

/// Keeps a loop current; see [`EventLoop::enter`].
#[derive(Debug)]
#[must_use = "the loop is current until this is dropped"]
pub struct Entered {
    before: Option<Poller>,
    /// It belongs to its thread.
    here: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let entered = ENTERED.replace(self.before.take());
        drop(entered);
    }
}
