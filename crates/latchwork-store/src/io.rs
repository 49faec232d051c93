//! The tasks and the clock that the engine lends to a backend.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::clock::{Clock, Moment, Sleep};
use crate::error::BackendError;
use crate::fork::Origin;
use crate::within::{Answer, Within};

/// A task handed to [`Io::spawn`].
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

type Shared = Arc<dyn Any + Send + Sync>;

/// Runs tasks and tells the time; given to a backend when it connects.
///
/// With a [`Driver`](https://docs.rs/latchwork/latest/latchwork/struct.Driver.html) the tasks run on Latchwork's own thread, inside a tokio
/// runtime with I/O enabled, so that a user runtime that blocks starves none of them. Tests give
/// an `Io` over one paused runtime instead.
#[derive(Clone)]
pub struct Io {
    spawn: Arc<dyn Fn(Task) + Send + Sync>,
    spawn_blocking: Option<Arc<dyn Fn(Task) + Send + Sync>>,
    clock: Arc<dyn Clock>,
    origin: Origin,
    shared: Arc<Mutex<Vec<Shared>>>,
}

impl Io {
    /// Creates an `Io` that runs tasks with `spawn` and tells time by `clock`.
    pub fn new(spawn: impl Fn(Task) + Send + Sync + 'static, clock: Arc<dyn Clock>) -> Self {
        let (spawn, origin) = (Arc::new(spawn), Origin::here());
        Self { spawn, spawn_blocking: None, clock, origin, shared: Arc::default() }
    }

    /// Returns the `Io` with another spawner, for tasks that block their thread.
    #[must_use]
    pub fn with_workers(self, spawn: impl Fn(Task) + Send + Sync + 'static) -> Self {
        Self { spawn_blocking: Some(Arc::new(spawn)), ..self }
    }

    /// Returns the `Io` whose tasks all run where they may block their thread, if there is such a
    /// place.
    #[must_use]
    pub fn for_blocking(self) -> Self {
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

    /// Returns the process to which it belongs.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Returns the value of this type that all clones of the `Io` share; the first call creates it.
    pub fn shared<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = shared.iter().find_map(|one| one.clone().downcast().ok()) {
            return found;
        }
        let new = Arc::<T>::default();
        shared.push(new.clone());
        new
    }

    /// Returns the clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Returns the current time of the boot clock.
    pub fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Returns a sleep of this length, from now.
    pub fn sleep(&self, length: Duration) -> Sleep {
        self.clock.sleep_until(self.now().plus(length))
    }

    /// Runs `future` for at most `limit`; returns `None` if it did not end in time.
    ///
    /// A future that ends at its first poll costs no timer.
    pub fn within<F: Future>(
        &self,
        limit: Duration,
        future: F,
    ) -> impl Future<Output = Option<F::Output>> {
        Within::new(&self.clock, limit, future)
    }

    /// Waits for the answer of a verb for at most `limit`.
    ///
    /// # Errors
    ///
    /// The verb's own, or `Unreachable` with an unknown effect if there was none in time.
    pub fn answer<T>(
        &self,
        limit: Duration,
        verb: impl Future<Output = Result<T, BackendError>>,
    ) -> impl Future<Output = Result<T, BackendError>> {
        Answer::new(Within::new(&self.clock, limit, verb))
    }
}

impl fmt::Debug for Io {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Io").field("clock", &self.clock).finish_non_exhaustive()
    }
}
