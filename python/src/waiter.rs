//! What a task of asyncio sleeps on while its operation is pending.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;

use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

use crate::agenda::Agenda;
use crate::bridge::Bridge;

/// One operation on a loop. Its waker notes it for the next turn.
pub(crate) struct Slot {
    agenda: Arc<Agenda>,
    woken: AtomicBool,
    /// What its task sleeps on.
    waiter: Mutex<Option<Py<Waiter>>>,
}

impl Wake for Slot {
    fn wake(self: Arc<Self>) {
        if !self.woken.swap(true, Ordering::SeqCst) {
            let agenda = self.agenda.clone();
            agenda.go_on(self);
        }
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::SeqCst) {
            self.agenda.go_on(self.clone());
        }
    }
}

impl Slot {
    pub(crate) fn on(agenda: &Arc<Agenda>) -> Arc<Self> {
        Arc::new(Self {
            agenda: agenda.clone(),
            woken: AtomicBool::new(false),
            waiter: Mutex::default(),
        })
    }

    /// Before a poll: from now on a wake-up counts.
    pub(crate) fn rearm(&self) {
        self.woken.store(false, Ordering::SeqCst);
    }

    /// Gives the task something to sleep on. Only this thread goes on with what was woken, so it does not happen in
    /// between.
    pub(crate) fn sleep(&self, py: Python<'_>, bridge: Py<Bridge>) -> PyResult<Py<Waiter>> {
        let waiter = Py::new(py, Waiter::new(bridge))?;
        let before = self.set(Some(waiter.clone_ref(py)));
        drop(before);
        Ok(waiter)
    }

    /// Whether a task sleeps on it, which another one must not take its place from.
    pub(crate) fn has_sleeper(&self) -> bool {
        self.lock().as_ref().is_some_and(|waiter| waiter.get().lock().end.is_none())
    }

    pub(crate) fn forget(&self) {
        drop(self.set(None));
    }

    /// Runs the task that sleeps on it: at once, or as a callback of the loop.
    pub(crate) fn go_on(&self, py: Python<'_>, at_once: bool) -> PyResult<()> {
        match self.set(None) {
            Some(waiter) => Waiter::complete(waiter.bind(py), at_once),
            None => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Py<Waiter>>> {
        self.waiter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, waiter: Option<Py<Waiter>>) -> Option<Py<Waiter>> {
        std::mem::replace(&mut *self.lock(), waiter)
    }
}

/// A future for one task, as asyncio defines what a future is. It has no value: the task polls its operation again.
///
/// Unlike a future of asyncio, it runs its task at once when it completes: that happens in a turn of the bridge, which
/// is a callback of the loop already. A handle of the loop for each operation would cost more than the rest of its way.
#[pyclass(frozen, module = "latchwork._native")]
pub(crate) struct Waiter {
    bridge: Py<Bridge>,
    /// Tasks check by it that they were given a future by `await`.
    blocking: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    callback: Option<Callback>,
    end: Option<End>,
}

struct Callback {
    function: Py<PyAny>,
    context: Option<Py<PyAny>>,
}

enum End {
    Done,
    /// With the message that was passed to `cancel`.
    Cancelled(Option<Py<PyAny>>),
}

impl Waiter {
    fn new(bridge: Py<Bridge>) -> Self {
        Self { bridge, blocking: AtomicBool::new(true), state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it, unless it has ended; its callback is then to be called.
    fn end(&self, end: End) -> Option<Option<Callback>> {
        let mut state = self.lock();
        if state.end.is_some() {
            return None;
        }
        state.end = Some(end);
        Some(state.callback.take())
    }

    fn complete(slf: &Bound<'_, Self>, at_once: bool) -> PyResult<()> {
        let Some(Some(callback)) = slf.get().end(End::Done) else {
            return Ok(());
        };
        if !at_once {
            return Self::call_soon(slf, callback);
        }
        let Callback { function, context } = callback;
        let py = slf.py();
        match context {
            Some(context) => context.bind(py).call_method1(intern!(py, "run"), (function, slf)),
            None => function.bind(py).call1((slf,)),
        }?;
        Ok(())
    }

    /// Has the loop call a callback after what it does now.
    fn call_soon(slf: &Bound<'_, Self>, callback: Callback) -> PyResult<()> {
        let py = slf.py();
        let more = PyDict::new(py);
        more.set_item(intern!(py, "context"), callback.context)?;
        let arguments = PyTuple::new(py, [callback.function.bind(py), slf.as_any()])?;
        slf.get().bridge.get().call_soon(py).call(arguments, Some(&more))?;
        Ok(())
    }
}

#[pymethods]
impl Waiter {
    #[getter(_asyncio_future_blocking)]
    fn is_blocking(&self) -> bool {
        self.blocking.load(Ordering::Relaxed)
    }

    #[setter(_asyncio_future_blocking)]
    fn set_blocking(&self, blocking: bool) {
        self.blocking.store(blocking, Ordering::Relaxed);
    }

    fn get_loop(&self, py: Python<'_>) -> Py<PyAny> {
        self.bridge.get().event_loop(py)
    }

    #[pyo3(signature = (function, /, *, context=None))]
    fn add_done_callback(
        slf: &Bound<'_, Self>,
        function: Py<PyAny>,
        context: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let callback = Callback { function, context };
        let mut state = slf.get().lock();
        if state.end.is_some() {
            drop(state);
            return Self::call_soon(slf, callback);
        }
        if state.callback.is_some() {
            return Err(PyRuntimeError::new_err("an operation has one task that waits for it"));
        }
        state.callback = Some(callback);
        Ok(())
    }

    fn remove_done_callback(slf: &Bound<'_, Self>, function: &Bound<'_, PyAny>) -> PyResult<usize> {
        let Some(callback) = slf.get().lock().callback.take() else { return Ok(0) };
        if callback.function.bind(slf.py()).eq(function)? {
            return Ok(1);
        }
        slf.get().lock().callback = Some(callback);
        Ok(0)
    }

    /// Has the task cancelled, which drops its operation.
    #[pyo3(signature = (msg=None))]
    fn cancel(slf: &Bound<'_, Self>, msg: Option<Py<PyAny>>) -> PyResult<bool> {
        match slf.get().end(End::Cancelled(msg)) {
            None => Ok(false),
            Some(None) => Ok(true),
            Some(Some(callback)) => Self::call_soon(slf, callback).map(|()| true),
        }
    }

    fn done(&self) -> bool {
        self.lock().end.is_some()
    }

    fn cancelled(&self) -> bool {
        matches!(self.lock().end, Some(End::Cancelled(_)))
    }

    fn result(&self, py: Python<'_>) -> PyResult<()> {
        let (name, message) = match &self.lock().end {
            Some(End::Done) => return Ok(()),
            Some(End::Cancelled(message)) => {
                ("CancelledError", message.as_ref().map(|it| it.clone_ref(py)))
            }
            None => ("InvalidStateError", None),
        };
        static ASYNCIO: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
        let asyncio = ASYNCIO.get_or_try_init(py, || py.import("asyncio").map(Bound::unbind))?;
        let kind = asyncio.bind(py).getattr(name)?;
        Err(PyErr::from_value(match message {
            Some(message) => kind.call1((message,)),
            None => kind.call0(),
        }?))
    }

    fn exception(&self, py: Python<'_>) -> PyResult<()> {
        self.result(py)
    }

    /// The loop is closed: the task that it keeps would be kept for ever.
    fn forget(&self) {
        let callback = self.lock().callback.take();
        drop(callback);
    }

    fn __repr__(&self) -> &'static str {
        match self.lock().end {
            None => "<latchwork operation pending>",
            Some(End::Done) => "<latchwork operation to go on>",
            Some(End::Cancelled(_)) => "<latchwork operation cancelled>",
        }
    }
}
