//! Moves the bytes of a connection, runs its tasks, and ends it when the member falls silent.
//!
//! A `Drive` polls it, near those that wait for the answers.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use h2::client::Connection;
use h2::{Ping, PingPong};
use latchwork_store::{Io, Moment, Sleep};
use latchwork_wire::Drive;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::codegen::Bytes;

use super::stream::{Noted, Pulse};

/// After so long a silence, a connection on which something is asked or watched for is pinged. A
/// server ends it if pings come more often than every five seconds (unless configured otherwise),
/// or while nothing is asked or watched for.
const PING_AFTER: Duration = Duration::from_secs(6);
/// How long the answer to that may take.
const PING_LIMIT: Duration = Duration::from_secs(2);

pub(super) type Task = BoxFuture<'static, ()>;

/// What those that use a connection leave to what moves it.
#[derive(Default)]
pub(super) struct Orders {
    state: Mutex<State>,
    /// How many requests have not been answered in full.
    in_use: AtomicUsize,
}

/// A request, until it has been answered in full.
pub(super) struct InUse(Arc<Orders>);

#[derive(Default)]
struct State {
    /// Tasks that it is to run.
    tasks: Vec<Task>,
    /// It is not needed any more, or of no use.
    ended: bool,
}

impl Orders {
    pub(super) fn begin(self: &Arc<Self>) -> InUse {
        self.in_use.fetch_add(1, Ordering::Relaxed);
        InUse(self.clone())
    }

    fn is_in_use(&self) -> bool {
        self.in_use.load(Ordering::Relaxed) != 0
    }

    /// Has a task run from the next move on, as long as the connection lives.
    pub(super) fn run(&self, task: Task) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // The drop of a task that never runs tells its caller.
        if !state.ended {
            state.tasks.push(task);
        }
    }

    /// Ends the connection at the next move.
    pub(super) fn end(&self) {
        let tasks = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.ended = true;
            std::mem::take(&mut state.tasks)
        };
        drop(tasks);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).ended
    }

    /// The new tasks; `None` at the end.
    fn take(&self) -> Option<Vec<Task>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (!state.ended).then(|| std::mem::take(&mut state.tasks))
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.in_use.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) struct Mover<S> {
    connection: Connection<Noted<S>, Bytes>,
    pings: Option<PingPong>,
    orders: Arc<Orders>,
    tasks: FuturesUnordered<Task>,
    pulse: Arc<Pulse>,
    watch: Watch,
    drive: Weak<Drive>,
    io: Io,
}

/// Whether the member lives.
enum Watch {
    /// Nothing is asked or watched for.
    Idle,
    /// It is looked at then.
    Until(Sleep),
    /// It was asked at this time.
    Asked(Moment, Sleep),
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Mover<S> {
    pub(super) fn new(
        mut connection: Connection<Noted<S>, Bytes>,
        orders: Arc<Orders>,
        pulse: Arc<Pulse>,
        drive: &Arc<Drive>,
    ) -> Self {
        Self {
            pings: connection.ping_pong(),
            connection,
            orders,
            tasks: FuturesUnordered::new(),
            pulse,
            watch: Watch::Idle,
            drive: Arc::downgrade(drive),
            io: drive.io().clone(),
        }
    }

    /// Ready when the member has fallen silent.
    fn poll_watch(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match &mut self.watch {
                Watch::Idle => {
                    if !self.orders.is_in_use() {
                        return Poll::Pending;
                    }
                    self.pulse.begin(self.io.now());
                    self.watch = Watch::Until(self.io.sleep(PING_AFTER));
                }
                Watch::Until(sleep) => {
                    if sleep.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    self.watch = self.next_look();
                }
                Watch::Asked(asked_at, sleep) => {
                    let asked_at = *asked_at;
                    if self.pulse.heard_at() > asked_at {
                        self.watch = self.next_look();
                        continue;
                    }
                    if sleep.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    // Those near it may be blocked, and the answer unread.
                    if self.read_all(cx).is_ready() || self.pulse.heard_at() <= asked_at {
                        return Poll::Ready(());
                    }
                }
            }
        }
    }

    fn next_look(&mut self) -> Watch {
        if !self.orders.is_in_use() {
            return Watch::Idle;
        }
        let now = self.io.now();
        let silent = now.since(self.pulse.heard_at());
        match &mut self.pings {
            Some(pings) if silent >= PING_AFTER => {
                // One that is still under way does as well.
                let _ = pings.send_ping(Ping::opaque());
                Watch::Asked(now, self.io.sleep(PING_LIMIT))
            }
            _ => Watch::Until(self.io.sleep(PING_AFTER.saturating_sub(silent))),
        }
    }

    fn read_all(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(drive) = self.drive.upgrade() {
            drive.look();
        }
        Pin::new(&mut self.connection).poll(cx).map(drop)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Future for Mover<S> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        loop {
            let Some(tasks) = this.orders.take() else { return Poll::Ready(()) };
            let is_new = !tasks.is_empty();
            this.tasks.extend(tasks);
            let mut has_run = is_new;
            while let Poll::Ready(Some(())) = this.tasks.poll_next_unpin(cx) {
                has_run = true;
            }
            if Pin::new(&mut this.connection).poll(cx).is_ready() {
                this.orders.end();
                return Poll::Ready(());
            }
            if let Some(pings) = &mut this.pings {
                // The answer counts by its bytes.
                while let Poll::Ready(Ok(_)) = pings.poll_pong(cx) {}
            }
            if this.poll_watch(cx).is_ready() {
                this.orders.end();
                return Poll::Ready(());
            }
            if !has_run {
                return Poll::Pending;
            }
        }
    }
}
