//! An operation of the engine, made once and then waited for by a thread or by an event loop.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use latchwork::Error;
use pyo3::exceptions::{PyRuntimeError, PyStopIteration};
use pyo3::prelude::*;

use crate::bridge::{Bridge, Slot};
use crate::errors::raised;
use crate::managers::duration;
use crate::outcomes::Outcome;
use crate::waiting::wait;

type Work = Pin<Box<dyn Future<Output = Result<Outcome, Error>> + Send>>;

/// An operation that has not begun. `wait()` blocks until it ends; `on(bridge)` makes it awaitable.
#[pyclass(frozen, module = "latchwork._native")]
pub(crate) struct Operation {
    state: Mutex<State>,
}

struct State {
    work: Option<Work>,
    loop_side: Option<LoopSide>,
}

/// What wakes the operation on an event loop.
struct LoopSide {
    bridge: Py<Bridge>,
    slot: Arc<Slot>,
    waker: Waker,
}

impl Operation {
    pub(crate) fn new(work: impl Future<Output = Result<Outcome, Error>> + Send + 'static) -> Self {
        let work: Work = Box::pin(work);
        Self { state: Mutex::new(State { work: Some(work), loop_side: None }) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls on the thread of the loop: the request is written in the first poll, and only what is pending needs a
    /// future of asyncio.
    fn step(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let polled = {
            let mut state = self.lock();
            let State { work, loop_side } = &mut *state;
            let (Some(future), Some(side)) = (work.as_mut(), loop_side.as_ref()) else {
                return Err(PyRuntimeError::new_err("this operation was awaited before"));
            };
            side.slot.rearm();
            match future.as_mut().poll(&mut Context::from_waker(&side.waker)) {
                Poll::Pending => Err((side.bridge.clone_ref(py), side.slot.clone())),
                Poll::Ready(outcome) => Ok((outcome, work.take())),
            }
        };
        match polled {
            Err((bridge, slot)) => slot.sleep(py, bridge.get()),
            Ok((outcome, ended)) => {
                drop(ended);
                let value = outcome.map_err(|error| raised(py, &error))?.into_python(py)?;
                Err(PyStopIteration::new_err((value,)))
            }
        }
    }

    /// Drops the future of the engine, which then leaves nothing behind.
    fn cancel(&self) {
        let (work, side) = {
            let mut state = self.lock();
            (state.work.take(), state.loop_side.take())
        };
        if let Some(side) = side {
            side.slot.forget();
        }
        drop(work);
    }
}

#[pymethods]
impl Operation {
    /// Blocks this thread until the operation ends, or until `timeout` has passed: then the result is `None`, and the
    /// operation is dropped.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let limit = timeout.map(|timeout| duration(timeout, "timeout")).transpose()?;
        let Some(work) = self.lock().work.take() else {
            return Err(PyRuntimeError::new_err("this operation was awaited before"));
        };
        match wait(py, work, limit)? {
            Some(outcome) => outcome.map_err(|error| raised(py, &error))?.into_python(py),
            None => Ok(py.None()),
        }
    }

    /// Makes the operation awaitable on the loop of this bridge.
    fn on(slf: Bound<'_, Self>, bridge: Py<Bridge>) -> Bound<'_, Self> {
        let slot = Slot::of(bridge.get());
        let waker = Waker::from(slot.clone());
        slf.get().lock().loop_side = Some(LoopSide { bridge, slot, waker });
        slf
    }

    fn __await__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.step(py)
    }

    fn send(&self, py: Python<'_>, _value: Py<PyAny>) -> PyResult<Py<PyAny>> {
        self.step(py)
    }

    #[pyo3(signature = (kind, value=None, _traceback=None))]
    fn throw(
        &self,
        kind: Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
        _traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        self.cancel();
        Err(PyErr::from_value(value.unwrap_or(kind)))
    }

    fn close(&self) {
        self.cancel();
    }
}
