//! What is held: one guard for all kinds of locks.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use futures_util::future::select_all;
use latchwork::once::Run;
use latchwork::{
    Error, ErrorKind, Exchange, FencingToken, Guard, HoldState, Lost, MultiGuard, NotHeld,
};
use latchwork_store::Key;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};
use tokio::sync::Notify;

use crate::errors::{not_held, released};
use crate::managers::Shared;
use crate::operation::Operation;
use crate::outcomes::{Object, Outcome, duration, seconds};
use crate::then::{place, warn_unreleased};

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

    fn first(&self) -> Option<&Guard> {
        match self {
            Self::One(guard) => Some(guard),
            Self::Several(guards) => guards.guards().first(),
            Self::Run(run) => Some(run),
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

/// A hold, shared by its guard and by those that watch it.
struct Inner {
    held: Mutex<Option<Held>>,
    /// Of several, the first.
    key: Option<Key>,
    /// Its token, which grows when the hold is upgraded or downgraded.
    token: AtomicU64,
    /// The others.
    more: Vec<(Key, u64)>,
    /// Notified when it is released.
    ended: OnceLock<Arc<Notify>>,
    /// Operations that will end it, and have not ended themselves.
    endings: AtomicUsize,
    /// Its guard was collected meanwhile.
    is_orphan: AtomicBool,
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Held> {
        let held = self.lock().take();
        if let Some(ended) = self.ended.get() {
            ended.notify_waiters();
        }
        held
    }

    fn key(&self) -> &str {
        self.key.as_ref().map_or("", Key::as_str)
    }

    fn token(&self) -> u64 {
        self.token.load(Ordering::SeqCst)
    }

    /// Asks the store for another hold in place of this one, as `prepare` says of the guard; `None` if it was released
    /// before.
    fn preparing<F>(&self, prepare: impl FnOnce(&Guard) -> F) -> Result<Option<F>, Error> {
        match &*self.lock() {
            None => Ok(None),
            Some(Held::One(guard)) => Ok(Some(prepare(guard))),
            Some(Held::Several(_) | Held::Run(_)) => {
                let message = "only the guard of one read-write lock is upgraded or downgraded";
                let error = Error::new(ErrorKind::Invalid, message)
                    .with_next_step("acquire that lock by itself, by rwlock(name).read or .write");
                Err(self.key.iter().fold(error, Error::with_key))
            }
        }
    }

    /// Goes on with the hold that the store has granted. What is returned completes when the store has released the
    /// one before; `None` if it was released meanwhile.
    fn exchange(
        &self,
        exchange: Exchange,
    ) -> Result<Option<impl Future<Output = ()> + Send + use<>>, Error> {
        let mut held = self.lock();
        let Some(Held::One(guard)) = held.as_mut() else { return Ok(None) };
        let settled = guard.exchange(exchange)?;
        self.token.store(guard.token().get(), Ordering::SeqCst);
        Ok(Some(settled))
    }

    fn loss(&self) -> Option<(&'static str, String)> {
        match self.lock().as_ref().map(Held::state) {
            Some(HoldState::Lost(lost)) => Some((lost.reason.word(), lost.to_string())),
            _ => None,
        }
    }
}

/// An operation that will end a hold, also if the guard is collected before it begins.
struct Ending(Arc<Inner>);

impl Ending {
    fn of(inner: &Arc<Inner>) -> Self {
        inner.endings.fetch_add(1, Ordering::SeqCst);
        Self(inner.clone())
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        // It was never begun, and nobody else will end the hold.
        if self.0.endings.fetch_sub(1, Ordering::SeqCst) == 1
            && self.0.is_orphan.load(Ordering::SeqCst)
        {
            drop(self.0.take());
        }
    }
}

thread_local! {
    /// The hold of the guard that is made on this thread at the moment.
    static NEXT: RefCell<Option<Hold>> = const { RefCell::new(None) };
}

/// What guards have in common. A lock that is held is released in the background when it is dropped.
#[pyclass(frozen, subclass, module = "latchwork._native")]
pub(crate) struct Hold {
    inner: Arc<Inner>,
    /// It is a guard that the program has.
    is_guard: AtomicBool,
    /// Where the program acquired it, in Python's development mode.
    place: Option<String>,
    /// Keeps the manager in the list of those that are closed when the process ends.
    _shared: Arc<Shared>,
}

impl Hold {
    pub(crate) fn new(held: Held, shared: Arc<Shared>) -> Self {
        let named = |guard: &Guard| (guard.key().clone(), guard.token().get());
        let (key, token) = held.first().map(named).unzip();
        let token = AtomicU64::new(token.unwrap_or_default());
        let more = match &held {
            Held::Several(guards) => guards.guards().iter().skip(1).map(named).collect(),
            _ => Vec::new(),
        };
        let held = Mutex::new(Some(held));
        let inner = Arc::new(Inner {
            held,
            key,
            token,
            more,
            ended: OnceLock::new(),
            endings: AtomicUsize::new(0),
            is_orphan: AtomicBool::new(false),
        });
        Self { inner, is_guard: AtomicBool::new(false), place: None, _shared: shared }
    }

    /// The outcome of a try: a hold, or nothing.
    pub(crate) fn outcome(held: Option<Held>, shared: &Arc<Shared>) -> Outcome {
        let hold = |held| Outcome::Object(Box::new(Self::new(held, shared.clone())));
        held.map_or(Outcome::Nothing, hold)
    }

    /// Makes a guard of a class that is derived from this one.
    fn into_guard(mut self, class: &Bound<'_, PyType>) -> PyResult<Py<PyAny>> {
        *self.is_guard.get_mut() = true;
        self.place = place(class.py());
        NEXT.set(Some(self));
        let made = class.call0();
        let left = NEXT.take();
        drop(left);
        Ok(made?.unbind())
    }

    /// Ends the hold when the operation begins.
    fn ending<F>(&self, end: impl FnOnce(Held) -> F + Send + 'static) -> Operation
    where
        F: Future<Output = Result<(), Error>> + Send,
    {
        let ending = Ending::of(&self.inner);
        Operation::new(async move {
            let Some(held) = ending.0.take() else {
                return Ok(Outcome::ReleasedBefore(ending.0.key().to_owned()));
            };
            drop(ending);
            end(held).await?;
            Ok(Outcome::Nothing)
        })
    }
}

impl Object for Hold {
    fn into_object(
        self: Box<Self>,
        py: Python<'_>,
        guard: Option<&Bound<'_, PyType>>,
    ) -> PyResult<Py<PyAny>> {
        match guard {
            Some(class) => self.into_guard(class),
            None => Ok(Py::new(py, *self)?.into_any()),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !*self.is_guard.get_mut() {
            return;
        }
        let is_lost = match &*self.inner.lock() {
            None => return,
            Some(held) => matches!(held.state(), HoldState::Lost(_)),
        };
        self.inner.is_orphan.store(true, Ordering::SeqCst);
        if self.inner.endings.load(Ordering::SeqCst) > 0 {
            // `await guard.release()` may be the last that had the guard.
            return;
        }
        drop(self.inner.take());
        if !is_lost {
            warn_unreleased(self.inner.key(), self.place.as_deref());
        }
    }
}

#[pymethods]
impl Hold {
    #[new]
    fn made() -> PyResult<Self> {
        let message = "a guard is made by a lock: call acquire() or try_acquire()";
        NEXT.take().ok_or_else(|| PyTypeError::new_err(message))
    }

    /// The key of the lock, with its namespace. Of several locks, the first key.
    #[getter]
    fn key(&self) -> &str {
        self.inner.key()
    }

    /// The fencing token: larger than every earlier holder's. Pass it to the resource, and let that refuse
    /// smaller ones. It exceeds 2^53: send it as text through JSON. Of several locks, the first one's.
    #[getter]
    fn token(&self) -> u64 {
        self.inner.token()
    }

    /// The token of each key.
    #[getter]
    fn tokens<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let tokens = PyDict::new(py);
        let first = self.inner.key.iter().map(|key| (key, self.inner.token()));
        let more = self.inner.more.iter().map(|(key, token)| (key, *token));
        for (key, token) in first.chain(more) {
            tokens.set_item(key.as_str(), token)?;
        }
        Ok(tokens)
    }

    #[getter(_is_released)]
    pub(crate) fn is_released(&self) -> bool {
        self.inner.lock().is_none()
    }

    /// How many seconds the lock remains valid without another renewal.
    #[getter]
    fn remaining(&self) -> f64 {
        let held = self.inner.lock();
        let guards = held.as_ref().map(Held::guards).unwrap_or_default();
        seconds(guards.iter().map(|guard| guard.remaining()).min().unwrap_or_default())
    }

    /// The ttl in seconds that the store granted last.
    #[getter]
    fn ttl(&self) -> f64 {
        let held = self.inner.lock();
        let guards = held.as_ref().map(Held::guards).unwrap_or_default();
        seconds(guards.iter().map(|guard| guard.ttl()).min().unwrap_or_default())
    }

    /// ``"held"``, ``"suspect"``, ``"lost"`` or ``"released"``.
    #[getter]
    fn state(&self) -> &'static str {
        match self.inner.lock().as_ref().map(Held::state) {
            None => "released",
            Some(HoldState::Held) => "held",
            Some(HoldState::Lost(_)) => "lost",
            Some(_) => "suspect",
        }
    }

    /// Returns the token if the lock is held for sure. Call it before each step that must not be done without.
    ///
    /// It reads the clock and does no I/O. A process can be paused right after it; only a resource that checks the
    /// token closes that gap.
    ///
    /// :raises Lost: The lock was lost, which is final.
    /// :raises Suspect: The hold is in doubt until a renewal confirms it.
    fn ensure_held(&self, py: Python<'_>) -> PyResult<u64> {
        let state = match &*self.inner.lock() {
            None => return Err(released(py, self.inner.key())),
            Some(held) => held.state(),
        };
        let why = match state {
            HoldState::Held => return Ok(self.inner.token()),
            HoldState::Lost(lost) => NotHeld::Lost(lost),
            _ => NotHeld::Suspect,
        };
        Err(not_held(py, why, self.inner.key()))
    }

    /// What others may watch without holding it.
    fn _fate(&self) -> Fate {
        Fate(self.inner.clone())
    }

    /// Releases; of a run, gives it up.
    #[pyo3(name = "_release")]
    pub(crate) fn releasing(&self) -> Operation {
        self.ending(async |held| match held {
            Held::One(guard) => guard.release().await,
            Held::Several(guards) => guards.release().await,
            Held::Run(run) => run.fail().await,
        })
    }

    /// Upgrades a read hold; the outcome is the new token.
    #[pyo3(signature = (timeout=None))]
    fn _upgrade(&self, timeout: Option<f64>) -> PyResult<Operation> {
        let limit = timeout.map(|timeout| duration(timeout, "timeout")).transpose()?;
        let inner = self.inner.clone();
        Ok(Operation::new(async move {
            let released = || Ok(Outcome::ReleasedBefore(inner.key().to_owned()));
            let Some(preparing) = inner.preparing(|guard| guard.prepare_upgrade(limit))? else {
                return released();
            };
            let prepared = preparing.await;
            if inner.lock().is_none() {
                return released();
            }
            // Nothing waits from here on: an upgrade that is cancelled has changed nothing.
            match inner.exchange(prepared?)? {
                Some(_) => Ok(Outcome::Token(FencingToken::from_raw(inner.token()))),
                None => released(),
            }
        }))
    }

    /// Downgrades a write hold; the outcome is the new token.
    fn _downgrade(&self) -> Operation {
        let inner = self.inner.clone();
        Operation::new(async move {
            let released = || Ok(Outcome::ReleasedBefore(inner.key().to_owned()));
            let Some(preparing) = inner.preparing(Guard::prepare_downgrade)? else {
                return released();
            };
            let prepared = preparing.await;
            if inner.lock().is_none() {
                return released();
            }
            let Some(settled) = inner.exchange(prepared?)? else { return released() };
            settled.await;
            Ok(Outcome::Token(FencingToken::from_raw(inner.token())))
        })
    }

    /// Closes the period of a run.
    fn _succeed(&self) -> Operation {
        self.ending(async |held| match held {
            Held::Run(run) => run.succeed().await,
            Held::One(guard) => guard.release().await,
            Held::Several(guards) => guards.release().await,
        })
    }

    /// The period in which a run has begun, in seconds since 1970.
    #[getter(_period)]
    fn period(&self) -> Option<(f64, f64)> {
        match &*self.inner.lock() {
            Some(Held::Run(run)) => {
                let period = run.period();
                Some((seconds(period.start), seconds(period.end)))
            }
            _ => None,
        }
    }

    /// Releases in the background, and returns at once.
    #[pyo3(name = "_forget")]
    pub(crate) fn forget(&self) {
        drop(self.inner.take());
    }
}

/// Whether a hold is lost, for those that do not hold it.
#[pyclass(frozen, module = "latchwork._native")]
pub(crate) struct Fate(Arc<Inner>);

#[pymethods]
impl Fate {
    /// The reason and the text of the loss.
    #[getter]
    fn loss(&self) -> Option<(&'static str, String)> {
        self.0.loss()
    }

    /// Completes with the loss, or with `None` once it is released.
    fn lost(&self) -> Operation {
        let held = self.0.lock();
        let lost = held.as_ref().map(Held::watch_loss);
        // Enlisted while the hold cannot end.
        let ended = self.0.ended.get_or_init(Arc::default).clone().notified_owned();
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
}
