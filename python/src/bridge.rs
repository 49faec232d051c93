//! The bridge to one event loop: a queue of what was woken, and a descriptor that the loop watches.
//!
//! Latchwork's threads never take the GIL. A waker pushes its slot, and writes to the descriptor only if the queue was
//! empty; so one wake-up of the loop serves a batch.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;

use pyo3::exceptions::PyOSError;
use pyo3::intern;
use pyo3::prelude::*;

/// What the threads of the engine see of a bridge.
struct Ready {
    queue: Mutex<Vec<Arc<Slot>>>,
    bell: bell::Bell,
}

/// One operation on a loop.
pub(crate) struct Slot {
    ready: Arc<Ready>,
    woken: AtomicBool,
    /// The future of asyncio that its task sleeps on.
    future: Mutex<Option<Py<PyAny>>>,
}

impl Wake for Slot {
    fn wake(self: Arc<Self>) {
        if self.woken.swap(true, Ordering::SeqCst) {
            return;
        }
        let ready = self.ready.clone();
        let is_first = {
            let mut queue = ready.queue.lock().unwrap_or_else(PoisonError::into_inner);
            queue.push(self);
            queue.len() == 1
        };
        if is_first {
            ready.bell.ring();
        }
    }
}

impl Slot {
    pub(crate) fn of(bridge: &Bridge) -> Arc<Self> {
        let ready = bridge.ready.clone();
        Arc::new(Self { ready, woken: AtomicBool::new(false), future: Mutex::new(None) })
    }

    /// Before a poll: from now on a wake-up counts.
    pub(crate) fn rearm(&self) {
        self.woken.store(false, Ordering::SeqCst);
    }

    /// Gives the task a future to sleep on. Only this thread empties the queue, so no wake-up comes in between.
    pub(crate) fn sleep(&self, py: Python<'_>, bridge: &Bridge) -> PyResult<Py<PyAny>> {
        let future = bridge.create_future.call0(py)?;
        future.setattr(py, intern!(py, "_asyncio_future_blocking"), true)?;
        let before = self.set(Some(future.clone_ref(py)));
        drop(before);
        Ok(future)
    }

    pub(crate) fn forget(&self) {
        drop(self.set(None));
    }

    fn set(&self, future: Option<Py<PyAny>>) -> Option<Py<PyAny>> {
        std::mem::replace(&mut *self.future.lock().unwrap_or_else(PoisonError::into_inner), future)
    }
}

/// The bridge to one event loop. The loop has to watch `fileno()` and to call `on_ready()`.
#[pyclass(frozen, weakref, module = "latchwork._native")]
pub(crate) struct Bridge {
    ready: Arc<Ready>,
    create_future: Py<PyAny>,
}

#[pymethods]
impl Bridge {
    #[new]
    fn new(py: Python<'_>, event_loop: Py<PyAny>) -> PyResult<Self> {
        let bell = bell::Bell::new().map_err(|error| PyOSError::new_err(error.to_string()))?;
        let create_future = event_loop.getattr(py, "create_future")?;
        Ok(Self { ready: Arc::new(Ready { queue: Mutex::default(), bell }), create_future })
    }

    fn fileno(&self) -> i32 {
        self.ready.bell.watched().as_raw_fd()
    }

    /// Wakes the tasks whose operations have something to do. All of them, also if a handler of signals raises in
    /// between: what was taken from the queue comes into it no more.
    fn on_ready(&self, py: Python<'_>) -> PyResult<()> {
        self.ready.bell.answer();
        let woken =
            std::mem::take(&mut *self.ready.queue.lock().unwrap_or_else(PoisonError::into_inner));
        let mut raised = Ok(());
        for slot in woken {
            let Some(future) = slot.set(None) else { continue };
            raised = wake(future.bind(py)).and(raised);
        }
        raised
    }
}

fn wake(future: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = future.py();
    if future.call_method0(intern!(py, "done"))?.is_truthy()? {
        return Ok(());
    }
    future.call_method1(intern!(py, "set_result"), (py.None(),))?;
    Ok(())
}

#[cfg(target_os = "linux")]
mod bell {
    use super::OwnedFd;
    use rustix::event::{EventfdFlags, eventfd};

    pub(super) struct Bell(OwnedFd);

    impl Bell {
        pub(super) fn new() -> std::io::Result<Self> {
            Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
        }

        pub(super) fn watched(&self) -> &OwnedFd {
            &self.0
        }

        pub(super) fn ring(&self) {
            // It fails only when the count is full, and then the loop wakes anyway.
            let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
        }

        pub(super) fn answer(&self) {
            let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod bell {
    use std::os::unix::net::UnixStream;

    use super::OwnedFd;

    pub(super) struct Bell(OwnedFd, OwnedFd);

    impl Bell {
        pub(super) fn new() -> std::io::Result<Self> {
            let (read, write) = UnixStream::pair()?;
            read.set_nonblocking(true)?;
            write.set_nonblocking(true)?;
            Ok(Self(read.into(), write.into()))
        }

        pub(super) fn watched(&self) -> &OwnedFd {
            &self.0
        }

        pub(super) fn ring(&self) {
            let _ = rustix::io::write(&self.1, &[1]);
        }

        pub(super) fn answer(&self) {
            while rustix::io::read(&self.0, &mut [0u8; 64]).is_ok_and(|read| read > 0) {}
        }
    }
}
