//! Greenlets of gevent and eventlet: while one waits for an operation, the thread runs the others.

use std::future::Future;
use std::os::fd::AsRawFd as _;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use latchwork_store::clock::boot_time;
use pyo3::exceptions::PyOSError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::bell::Bell;

/// The modules of this program.
pub(crate) fn modules(py: Python<'_>) -> PyResult<&Bound<'_, PyDict>> {
    static MODULES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let modules = MODULES.get_or_try_init(py, || {
        Ok::<_, PyErr>(py.import("sys")?.getattr("modules")?.cast_into::<PyDict>()?.unbind())
    })?;
    Ok(modules.bind(py))
}

/// What a greenlet waits by, if this thread has greenlets: `wait(descriptor, seconds)`.
pub(crate) fn waiting(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    let modules = modules(py)?;
    if modules.get_item(intern!(py, "gevent.monkey"))?.is_none()
        && modules.get_item(intern!(py, "eventlet.patcher"))?.is_none()
    {
        return Ok(None);
    }
    let waiting = py.import("latchwork._greenlets")?.getattr("waiting")?.call0()?;
    Ok(if waiting.is_none() { None } else { Some(waiting) })
}

/// Wakes a greenlet, or a task of trio, from any thread.
pub(crate) struct Ring(pub(crate) Bell);

impl Ring {
    pub(crate) fn new() -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Self(Bell::new()?)))
    }
}

impl Wake for Ring {
    fn wake(self: Arc<Self>) {
        self.0.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.ring();
    }
}

/// Waits for a future until `limit` has passed: then the result is `None`. What ends the greenlet's wait, as a timeout of
/// gevent does, drops the future.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    future: impl Future<Output = T> + Send,
    limit: Option<Duration>,
    waiting: &Bound<'_, PyAny>,
) -> PyResult<Option<T>> {
    let ring = Ring::new().map_err(|error| PyOSError::new_err(error.to_string()))?;
    let waker = Waker::from(ring.clone());
    let end = limit.map(|limit| boot_time().plus(limit));
    let mut future = pin!(future);
    loop {
        let polled = py.detach(|| future.as_mut().poll(&mut Context::from_waker(&waker)));
        if let Poll::Ready(done) = polled {
            return Ok(Some(done));
        }
        let left = end.map(|end| end.since(boot_time()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(None);
        }
        let seconds = left.map(|left| left.as_secs_f64());
        waiting.call1((ring.0.watched().as_raw_fd(), seconds))?;
        ring.0.answer();
    }
}
