//! What core lends to a backend: a place to run and a clock.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::ClaimId;
use crate::clock::{Clock, Moment, Sleep};
use crate::error::BackendError;
use crate::fork::Origin;

/// A task handed to [`Io::spawn`].
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A place to run and a clock, given to a backend when it connects.
///
/// With a [`Driver`](crate::Driver) the tasks run on Latchwork's own thread, inside a tokio
/// runtime with I/O enabled, so that a user runtime that blocks starves none of them. Tests give
/// an `Io` over one paused runtime instead.
#[derive(Clone)]
pub struct Io {
    spawn: Arc<dyn Fn(Task) + Send + Sync>,
    spawn_blocking: Option<Arc<dyn Fn(Task) + Send + Sync>>,
    clock: Arc<dyn Clock>,
    doubts: Arc<Doubts>,
    origin: Origin,
}

/// Where backends say which claims they want to be renewed at once: each engine on an [`Io`] has a
/// sink of its own, for the backend does not know whose a claim is.
#[derive(Debug, Default)]
struct Doubts {
    sinks: Mutex<Vec<Weak<DoubtSink>>>,
}

/// The claims in doubt that one engine has not looked at yet, its own and those of others.
#[derive(Debug, Default)]
pub(crate) struct DoubtSink {
    claims: Mutex<Vec<ClaimId>>,
    told: Notify,
}

impl DoubtSink {
    /// Completes when there is one, or was one.
    pub(crate) async fn told(&self) {
        self.told.notified().await;
    }

    pub(crate) fn take(&self) -> Vec<ClaimId> {
        std::mem::take(&mut *self.claims.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Io {
    /// An `Io` that runs tasks with `spawn` and tells time by `clock`.
    pub fn new(spawn: impl Fn(Task) + Send + Sync + 'static, clock: Arc<dyn Clock>) -> Self {
        let (spawn, origin) = (Arc::new(spawn), Origin::here());
        Self { spawn, spawn_blocking: None, clock, doubts: Arc::default(), origin }
    }

    /// The same, with another place for tasks that block their thread.
    pub(crate) fn with_workers(self, spawn: impl Fn(Task) + Send + Sync + 'static) -> Self {
        Self { spawn_blocking: Some(Arc::new(spawn)), ..self }
    }

    /// The same, with all tasks where they may block their thread, if there is such a place.
    pub(crate) fn for_blocking(self) -> Self {
        match &self.spawn_blocking {
            Some(spawn) => Self { spawn: spawn.clone(), ..self },
            None => self,
        }
    }

    /// Runs a task until it ends or the driver shuts down. Callable from anywhere, never blocks.
    ///
    /// The task must not block either: it shares its thread with other tasks of the store.
    ///
    /// In a child that was forked from the process, where nothing runs it, the task is left as it is.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if self.origin.is_here() {
            (self.spawn)(Box::pin(task));
        } else {
            std::mem::forget(Box::pin(task));
        }
    }

    /// The process that it runs in.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// The clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Now, on the boot clock.
    pub fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Asks core to renew this claim now: the store has let it be known that it may have ended.
    ///
    /// For stores that tell of such a thing by themselves. The renewal settles it, so a word too
    /// much costs a request and does no harm; a claim that nobody holds is passed over. It reaches
    /// every manager on this `Io` and its clones.
    pub fn doubt(&self, claim: ClaimId) {
        self.doubts.sinks.lock().unwrap_or_else(PoisonError::into_inner).retain(|sink| {
            let Some(sink) = sink.upgrade() else { return false };
            sink.claims.lock().unwrap_or_else(PoisonError::into_inner).push(claim);
            sink.told.notify_one();
            true
        });
    }

    /// Hears of all doubts from now on, until the sink is dropped.
    pub(crate) fn doubts(&self) -> Arc<DoubtSink> {
        let sink = Arc::default();
        let mut sinks = self.doubts.sinks.lock().unwrap_or_else(PoisonError::into_inner);
        sinks.push(Arc::downgrade(&sink));
        sink
    }

    /// A sleep of this length, from now.
    pub fn sleep(&self, length: Duration) -> Sleep {
        self.clock.sleep_until(self.now().plus(length))
    }

    /// Runs `future` for at most `limit`; `None` if it did not end in time.
    ///
    /// A future that ends at its first poll costs no timer.
    pub async fn within<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let at = self.now().plus(limit);
        let mut timer: Option<Sleep> = None;
        poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            timer.get_or_insert_with(|| self.clock.sleep_until(at)).as_mut().poll(cx).map(|()| None)
        })
        .await
    }
}

impl Io {
    /// The answer of a verb within `limit`, or the error that there was none.
    pub(crate) async fn answer<T>(
        &self,
        limit: Duration,
        verb: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        self.within(limit, verb).await.unwrap_or_else(|| Err(BackendError::no_answer(limit)))
    }
}

impl fmt::Debug for Io {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Io").field("clock", &self.clock).finish_non_exhaustive()
    }
}
