//! What is held: one guard for all kinds of locks.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::select_all;
use latchwork::once::Run;
use latchwork::{Guard, HoldState, Lost, MultiGuard, NotHeld};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::sync::Notify;

use crate::errors::not_held;
use crate::managers::Shared;
use crate::operation::Operation;
use crate::outcomes::{Outcome, seconds};

/// A guard of the engine.
pub(crate) enum Held {
    One(Guard),
    Several(MultiGuard),
    Run(Run),
}

impl Held {
    fn guards(&self) -> Vec<&Guard> {
        match self {
            Self::One(guard) => vec![guard],
            Self::Several(guards) => guards.guards().iter().collect(),
            Self::Run(run) => vec![run],
        }
    }

    fn state(&self) -> HoldState {
        match self {
            Self::One(guard) => guard.state(),
            Self::Several(guards) => guards.state(),
            Self::Run(run) => run.state(),
        }
    }

    fn watch_loss(&self) -> impl Future<Output = Lost> + Send + use<> {
        let watched = self.guards().into_iter().map(|guard| {
            let watched: Pin<Box<dyn Future<Output = Lost> + Send>> = Box::pin(guard.watch_loss());
            watched
        });
        let watched = select_all(watched);
        async move { watched.await.0 }
    }
}

/// A lock that is held; released in the background when it is dropped.
#[pyclass(frozen, module = "latchwork._native")]
pub(crate) struct Hold {
    held: Mutex<Option<Held>>,
    tokens: Vec<(String, u64)>,
    /// Notified when it is released.
    ended: Arc<Notify>,
    /// Keeps the manager in the list of those that are closed when the process ends.
    _shared: Arc<Shared>,
}

impl Hold {
    pub(crate) fn new(held: Held, shared: Arc<Shared>) -> Self {
        let guards = held.guards();
        let tokens = guards.iter().map(|it| (it.key().as_str().to_owned(), it.token().get()));
        let tokens = tokens.collect();
        Self { held: Mutex::new(Some(held)), tokens, ended: Arc::default(), _shared: shared }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> PyResult<Held> {
        let held = self.lock().take().ok_or_else(|| released(self.key()))?;
        self.ended.notify_waiters();
        Ok(held)
    }
}

fn released(key: String) -> PyErr {
    PyRuntimeError::new_err(format!("the lock {key:?} was released by this guard before"))
}

#[pymethods]
impl Hold {
    /// The key; of several, the first.
    #[getter]
    fn key(&self) -> String {
        self.tokens.first().map(|(key, _)| key.clone()).unwrap_or_default()
    }

    #[getter]
    fn token(&self) -> u64 {
        self.tokens.first().map_or(0, |(_, token)| *token)
    }

    #[getter]
    fn tokens(&self) -> Vec<(String, u64)> {
        self.tokens.clone()
    }

    #[getter]
    fn is_released(&self) -> bool {
        self.lock().is_none()
    }

    #[getter]
    fn remaining(&self) -> f64 {
        let held = self.lock();
        let guards = held.as_ref().map(Held::guards).unwrap_or_default();
        seconds(guards.iter().map(|guard| guard.remaining()).min().unwrap_or_default())
    }

    #[getter]
    fn ttl(&self) -> f64 {
        let held = self.lock();
        let guards = held.as_ref().map(Held::guards).unwrap_or_default();
        seconds(guards.iter().map(|guard| guard.ttl()).min().unwrap_or_default())
    }

    /// `held`, `suspect`, `lost` or `released`.
    #[getter]
    fn state(&self) -> &'static str {
        match self.lock().as_ref().map(Held::state) {
            None => "released",
            Some(HoldState::Held) => "held",
            Some(HoldState::Suspect) => "suspect",
            Some(HoldState::Lost(_)) => "lost",
        }
    }

    /// The reason and the text of the loss.
    #[getter]
    fn loss(&self) -> Option<(&'static str, String)> {
        match self.lock().as_ref().map(Held::state) {
            Some(HoldState::Lost(lost)) => Some((lost.reason.word(), lost.to_string())),
            _ => None,
        }
    }

    fn ensure_held(&self, py: Python<'_>) -> PyResult<u64> {
        let state = match &*self.lock() {
            None => return Err(released(self.key())),
            Some(held) => held.state(),
        };
        let why = match state {
            HoldState::Held => return Ok(self.token()),
            HoldState::Suspect => NotHeld::Suspect,
            HoldState::Lost(lost) => NotHeld::Lost(lost),
        };
        Err(not_held(py, why, &self.key()))
    }

    /// Completes with the loss, or with `None` once it is released.
    fn lost(&self) -> Operation {
        let held = self.lock();
        let lost = held.as_ref().map(Held::watch_loss);
        // Enlisted while the hold cannot end.
        let ended = self.ended.clone().notified_owned();
        drop(held);
        Operation::new(async move {
            let Some(lost) = lost else { return Ok(Outcome::Lost(None)) };
            tokio::select! {
                biased;
                () = ended => Ok(Outcome::Lost(None)),
                lost = lost => Ok(Outcome::Lost(Some(lost))),
            }
        })
    }

    /// Releases; of a run, gives it up.
    fn release(&self) -> PyResult<Operation> {
        let held = self.take()?;
        Ok(Operation::new(async move {
            match held {
                Held::One(guard) => guard.release().await,
                Held::Several(guards) => guards.release().await,
                Held::Run(run) => run.fail().await,
            }?;
            Ok(Outcome::Nothing)
        }))
    }

    /// Closes the period of a run.
    fn succeed(&self) -> PyResult<Operation> {
        let held = self.take()?;
        Ok(Operation::new(async move {
            match held {
                Held::Run(run) => run.succeed().await,
                Held::One(guard) => guard.release().await,
                Held::Several(guards) => guards.release().await,
            }?;
            Ok(Outcome::Nothing)
        }))
    }

    /// The period in which a run has begun, in seconds since 1970.
    #[getter]
    fn period(&self) -> Option<(f64, f64)> {
        match &*self.lock() {
            Some(Held::Run(run)) => {
                let period = run.period();
                Some((seconds(period.start), seconds(period.end)))
            }
            _ => None,
        }
    }

    /// Releases in the background, and returns at once.
    fn abandon(&self) {
        let held = self.lock().take();
        self.ended.notify_waiters();
        drop(held);
    }
}
