//! An operation of the engine, made once and then waited for by a thread or by a task of asyncio.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use latchwork::Error;
use pyo3::exceptions::{PyAttributeError, PyRuntimeError, PyStopIteration};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

use crate::bridge::Bridge;
use crate::greenlets::modules;
use crate::outcomes::{Outcome, duration};
use crate::polled::Polled;
use crate::then::{Then, warn_unawaited};
use crate::waiter::{Slot, Waiter};
use crate::waiting::{end_with_the_process, wait};

pub(crate) type Work = Pin<Box<dyn Future<Output = Result<Outcome, Error>> + Send>>;

/// An operation that has not begun. `wait()` blocks until it ends; `await` polls it on the running loop.
#[pyclass(frozen, module = "latchwork._native")]
pub(crate) struct Operation {
    state: Mutex<State>,
}

struct State {
    work: Option<Work>,
    /// What becomes of its outcome.
    then: Then,
    /// What wakes it on an event loop.
    side: Option<LoopSide>,
    /// A caller has it in place of a coroutine, and has not awaited it.
    is_awaitable: bool,
}

struct LoopSide {
    bridge: Py<Bridge>,
    slot: Arc<Slot>,
    waker: Waker,
}

impl LoopSide {
    fn running(py: Python<'_>) -> PyResult<Self> {
        let bridge = Bridge::running(py)?;
        let slot = Slot::on(bridge.get().agenda());
        let waker = Waker::from(slot.clone());
        Ok(Self { bridge, slot, waker })
    }
}

/// What a poll on a loop has come to.
enum Stepped {
    /// What the task sleeps on.
    Pending(Py<Waiter>),
    Done(Py<PyAny>),
}

impl Operation {
    pub(crate) fn new(work: impl Future<Output = Result<Outcome, Error>> + Send + 'static) -> Self {
        let work: Work = Box::pin(work);
        let state = State { work: Some(work), then: Then::Given, side: None, is_awaitable: false };
        Self { state: Mutex::new(state) }
    }

    /// Blocks this thread until it ends.
    pub(crate) fn waited(self, py: Python<'_>, then: Then) -> PyResult<Py<PyAny>> {
        let (work, _) = self.begin()?;
        finished(py, work, then, None)
    }

    /// Takes it out, for a wait of another kind than that of asyncio.
    fn begin(&self) -> PyResult<(Work, Then)> {
        let mut state = self.lock();
        Ok((state.work.take().ok_or_else(again)?, std::mem::take(&mut state.then)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same operation, for a caller that gets it in place of a coroutine.
    pub(crate) fn awaited(mut self, then: Then) -> Self {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        (state.then, state.is_awaitable) = (then, true);
        self
    }

    /// The same operation, which a caller gets in place of a coroutine.
    pub(crate) fn with<'py>(slf: Bound<'py, Self>, then: Then) -> Bound<'py, Self> {
        {
            let mut state = slf.get().lock();
            (state.then, state.is_awaitable) = (then, true);
        }
        slf
    }

    /// Polls on the thread of the loop. The request is noted in the first poll, and only what is pending needs
    /// something to sleep on.
    fn step(&self, py: Python<'_>) -> PyResult<Stepped> {
        end_with_the_process()?;
        let mut state = self.lock();
        state.is_awaitable = false;
        if state.side.is_none() && state.work.is_some() {
            // Not under the lock: this may run code of Python.
            drop(state);
            let side = LoopSide::running(py)?;
            state = self.lock();
            state.side = Some(side);
        }
        let State { work, side, .. } = &mut *state;
        let (Some(future), Some(side)) = (work.as_mut(), side.as_ref()) else {
            return Err(again());
        };
        if side.slot.has_sleeper() {
            return Err(PyRuntimeError::new_err(
                "this operation is being awaited already: each task needs an operation of its own",
            ));
        }
        side.slot.rearm();
        let bridge = side.bridge.bind(py);
        let section = bridge.get().agenda().section();
        let polled = {
            let _entered = bridge.get().here().enter();
            future.as_mut().poll(&mut Context::from_waker(&side.waker))
        };
        let needs_turn = section.end();
        let bridge = bridge.clone();
        match polled {
            Poll::Pending => {
                let slot = side.slot.clone();
                drop(state);
                if needs_turn {
                    Bridge::turn_soon(&bridge)?;
                }
                Ok(Stepped::Pending(slot.sleep(py, bridge.unbind())?))
            }
            Poll::Ready(outcome) => {
                let ended = (work.take(), state.side.take());
                let event_loop = bridge.get().event_loop(py);
                let then = std::mem::take(&mut state.then);
                drop(state);
                drop(ended);
                if needs_turn {
                    Bridge::turn_soon(&bridge)?;
                }
                then.apply(py, outcome, Some(&event_loop)).map(Stepped::Done)
            }
        }
    }

    /// Drops the future of the engine, which then leaves nothing behind.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        let (work, side) = {
            let mut state = self.lock();
            (state.work.take(), state.side.take())
        };
        let Some(side) = side else { return Ok(()) };
        side.slot.forget();
        let bridge = side.bridge.bind(py);
        let section = bridge.get().agenda().section();
        {
            let _entered = bridge.get().here().enter();
            drop(work);
        }
        if section.end() { Bridge::turn_soon(bridge) } else { Ok(()) }
    }
}

/// Waits for the value; it is `None` if the limit has passed first.
fn finished(
    py: Python<'_>,
    work: Work,
    then: Then,
    limit: Option<Duration>,
) -> PyResult<Py<PyAny>> {
    let (outcome, inside) = wait(py, work, limit)?;
    let value = outcome.map_or_else(|| Ok(py.None()), |outcome| then.apply(py, outcome, None));
    drop(inside);
    value
}

fn again() -> PyErr {
    PyRuntimeError::new_err("this operation was awaited before")
}

impl Drop for Operation {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if state.is_awaitable && state.work.is_some() {
            warn_unawaited();
        }
    }
}

/// The end of an iterator with this value.
fn stop(py: Python<'_>, value: Py<PyAny>) -> PyErr {
    // A tuple would be taken for the arguments of the exception. Everything else needs none.
    if value.bind(py).is_instance_of::<PyTuple>() {
        return PyStopIteration::new_err((value,));
    }
    PyStopIteration::new_err(value)
}

#[pymethods]
impl Operation {
    /// Blocks this thread until the operation ends, or until `timeout` has passed: then the result is `None`, and the
    /// operation is dropped.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let limit = timeout.map(|timeout| duration(timeout, "timeout")).transpose()?;
        let (work, then) = self.begin()?;
        finished(py, work, then, limit)
    }

    /// The same operation in place of a coroutine.
    fn awaitable(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        Self::with(slf, Then::Given)
    }

    /// Gives a guard of this class.
    fn giving<'py>(slf: Bound<'py, Self>, class: Py<PyType>) -> Bound<'py, Self> {
        Self::with(slf, Then::Guard(class))
    }

    /// Ends a block that has raised this, or nothing.
    #[pyo3(signature = (raised))]
    fn leaving<'py>(slf: Bound<'py, Self>, raised: Option<Py<PyAny>>) -> Bound<'py, Self> {
        Self::with(slf, Then::Left(raised))
    }

    /// The same operation for a task of trio, which polls it.
    fn polled(&self) -> PyResult<Polled> {
        let (work, then) = self.begin()?;
        Polled::new(work, then)
    }

    /// What is awaited has attributes, and this has none.
    fn __getattr__(&self, name: &str) -> PyResult<Py<PyAny>> {
        Err(PyAttributeError::new_err(format!(
            "an operation of latchwork has no attribute '{name}': it is not awaited yet; write `await`"
        )))
    }

    fn __await__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        let py = slf.py();
        if modules(py)?.get_item(intern!(py, "trio"))?.is_some() {
            let awaited = py.import("latchwork._trio")?.getattr("awaited")?.call1((&slf,))?;
            if !awaited.is_none() {
                return Ok(awaited);
            }
        }
        Ok(slf.into_any())
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    /// `None` is the end without a value.
    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        match self.step(py)? {
            Stepped::Pending(waiter) => Ok(Some(waiter.into_any())),
            Stepped::Done(value) if value.is_none(py) => Ok(None),
            Stepped::Done(value) => Err(stop(py, value)),
        }
    }

    fn send(&self, py: Python<'_>, _value: Py<PyAny>) -> PyResult<Py<PyAny>> {
        match self.step(py)? {
            Stepped::Pending(waiter) => Ok(waiter.into_any()),
            Stepped::Done(value) => Err(stop(py, value)),
        }
    }

    #[pyo3(signature = (kind, value=None, _traceback=None))]
    fn throw(
        &self,
        py: Python<'_>,
        kind: Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
        _traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        self.cancel(py)?;
        Err(PyErr::from_value(value.unwrap_or(kind)))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.cancel(py)
    }
}
