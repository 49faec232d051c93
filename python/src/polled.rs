//! An operation that is polled when a descriptor can be read: for trio, whose tasks wait for descriptors.

use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

use crate::greenlets::Ring;
use crate::operation::Work;
use crate::then::Then;

/// An operation under way. Its task polls it until it is done, and waits for `fileno()` in between.
#[pyclass(frozen, module = "latchwork._native")]
pub(crate) struct Polled {
    ring: Arc<Ring>,
    waker: Waker,
    state: Mutex<(Option<Work>, Then)>,
}

impl Polled {
    pub(crate) fn new(work: Work, then: Then) -> PyResult<Self> {
        let ring = Ring::new().map_err(|error| PyOSError::new_err(error.to_string()))?;
        let waker = Waker::from(ring.clone());
        Ok(Self { ring, waker, state: Mutex::new((Some(work), then)) })
    }

    fn take(&self) -> Option<Work> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0.take()
    }
}

#[pymethods]
impl Polled {
    /// Whether its value is a hold: a task that is cancelled then begins nothing.
    #[getter]
    fn acquires(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1.acquires()
    }

    fn fileno(&self) -> i32 {
        self.ring.0.watched().as_raw_fd()
    }

    /// `None` while it is pending, and then its value in a tuple.
    fn poll(&self, py: Python<'_>) -> PyResult<Option<(Py<PyAny>,)>> {
        let Some(mut work) = self.take() else { return Ok(None) };
        self.ring.0.answer();
        let (polled, work) = py.detach(|| {
            let polled = work.as_mut().poll(&mut Context::from_waker(&self.waker));
            (polled, work)
        });
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match polled {
            Poll::Pending => {
                state.0 = Some(work);
                Ok(None)
            }
            Poll::Ready(outcome) => {
                let then = std::mem::take(&mut state.1);
                drop(state);
                drop(work);
                Ok(Some((then.apply(py, outcome, None)?,)))
            }
        }
    }

    /// Drops the future of the engine, which then leaves nothing behind.
    fn close(&self) {
        drop(self.take());
    }
}
