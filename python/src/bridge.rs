//! The bridge to one event loop: its turns, and the descriptor that the loop watches for other threads.
//!
//! Latchwork's threads never take the GIL. What they wake is noted, and the loop goes on with all of it in one turn; so
//! does it with what its own thread has noted. A turn also polls the tasks of stores, after all operations that are
//! ready: what many operations want from a store goes out together, and one readable connection answers them all.

use std::cell::RefCell;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use latchwork_wire::EventLoop;
use pyo3::exceptions::{PyException, PyOSError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::agenda::{Agenda, Lent, Watch};

/// The bridge to one event loop. The loop has to watch `fileno()` and to call `on_ready()`.
#[pyclass(frozen, weakref, module = "latchwork._native")]
pub(crate) struct Bridge {
    agenda: Arc<Agenda>,
    /// The loop, as stores see it.
    here: EventLoop,
    event_loop: Py<PyAny>,
    call_soon: Py<PyAny>,
}

thread_local! {
    /// The loop that ran last on this thread, and its bridge.
    static LAST: RefCell<Option<(Py<PyAny>, Py<Bridge>)>> = const { RefCell::new(None) };
    /// The bridge that runs the tasks of its loop in a turn. No other loop runs on the thread meanwhile: asyncio refuses a loop
    /// inside of a loop.
    static TURNING: RefCell<Option<Py<Bridge>>> = const { RefCell::new(None) };
}

/// While it lives, this bridge runs tasks, or none.
struct Turning(Option<Py<Bridge>>);

impl Turning {
    fn begin(bridge: Option<Py<Bridge>>) -> Self {
        Self(TURNING.replace(bridge))
    }
}

impl Drop for Turning {
    fn drop(&mut self) {
        let ended = TURNING.replace(self.0.take());
        drop(ended);
    }
}

impl Bridge {
    /// The bridge of the loop that runs on this thread.
    pub(crate) fn running(py: Python<'_>) -> PyResult<Py<Self>> {
        // Up to 3.11 Python asks the system for the process, to learn of a fork.
        let turning = TURNING.with_borrow(|it| it.as_ref().map(|bridge| bridge.clone_ref(py)));
        if let Some(bridge) = turning.filter(|bridge| bridge.get().agenda.is_here()) {
            return Ok(bridge);
        }
        static RUNNING: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let running = RUNNING.get_or_try_init(py, || {
            Ok::<_, PyErr>(py.import("asyncio")?.getattr("_get_running_loop")?.unbind())
        })?;
        let running = running.call0(py)?;
        let last = LAST.with_borrow(|last| match last {
            Some((event_loop, bridge)) if event_loop.is(&running) => Some(bridge.clone_ref(py)),
            _ => None,
        });
        if let Some(bridge) = last {
            return Ok(bridge);
        }
        let bridge = py.import("latchwork._loops")?.getattr("bridge")?.call0()?;
        let bridge = bridge.cast_into::<Self>()?.unbind();
        let before = LAST.replace(Some((running, bridge.clone_ref(py))));
        drop(before);
        Ok(bridge)
    }

    pub(crate) fn agenda(&self) -> &Arc<Agenda> {
        &self.agenda
    }

    pub(crate) fn here(&self) -> &EventLoop {
        &self.here
    }

    pub(crate) fn event_loop(&self, py: Python<'_>) -> Py<PyAny> {
        self.event_loop.clone_ref(py)
    }

    pub(crate) fn call_soon<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.call_soon.bind(py)
    }

    /// Whether a task may run the loop inside of itself, as `nest_asyncio` has it. The turn that had run this task would
    /// not end before that, and no other turn begins meanwhile.
    fn is_reentrant(&self, py: Python<'_>) -> bool {
        self.event_loop.bind(py).hasattr(intern!(py, "_nest_patched")).unwrap_or(false)
    }

    /// Asks the loop for a turn after what it does now. On its thread.
    ///
    /// # Errors
    ///
    /// What a handler of signals raises meanwhile. The turn comes all the same.
    pub(crate) fn turn_soon(slf: &Bound<'_, Self>) -> PyResult<()> {
        let this = slf.get();
        let turn = slf.getattr(intern!(slf.py(), "turn"));
        let noted = turn.and_then(|turn| this.call_soon(slf.py()).call1((turn,)));
        if noted.is_err() {
            this.agenda.bell().ring();
        }
        noted.map(drop)
    }

    /// Tells the loop which connections to watch.
    fn change_watches(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (this, py) = (slf.get(), slf.py());
        let (watched, left) = this.agenda.changes();
        let mut raised = Ok(());
        for watch in watched {
            let reader = Reader { bridge: slf.clone().unbind(), watch: watch.clone() };
            let added = Py::new(py, reader).and_then(|reader| {
                let watched = (watch.descriptor(), reader);
                this.event_loop.call_method1(py, intern!(py, "add_reader"), watched)
            });
            if let Err(error) = added {
                watch.refuse();
                raised = raised.and(unless_ordinary(py, error));
            }
        }
        for watch in left {
            let left = (watch.descriptor(),);
            // A loop that is closed watches nothing any more.
            if let Err(error) = this.event_loop.call_method1(py, intern!(py, "remove_reader"), left)
            {
                raised = raised.and(unless_ordinary(py, error));
            }
        }
        raised
    }
}

/// What a handler of signals has raised, or anything else that is no error of what was called.
fn unless_ordinary(py: Python<'_>, error: PyErr) -> PyResult<()> {
    if error.is_instance_of::<PyException>(py) { Ok(()) } else { Err(error) }
}

#[pymethods]
impl Bridge {
    #[new]
    fn new(py: Python<'_>, event_loop: Py<PyAny>) -> PyResult<Self> {
        let agenda = Agenda::new().map_err(|error| PyOSError::new_err(error.to_string()))?;
        let agenda = Arc::new(agenda);
        let here = EventLoop::foreign(Arc::new(Lent(agenda.clone())));
        let call_soon = event_loop.getattr(py, "call_soon")?;
        Ok(Self { agenda, here, event_loop, call_soon })
    }

    fn fileno(&self) -> i32 {
        self.agenda.bell().watched().as_raw_fd()
    }

    /// Another thread has noted something.
    fn on_ready(slf: &Bound<'_, Self>) -> PyResult<()> {
        slf.get().agenda.bell().answer();
        Self::turn(slf)
    }

    /// Does what was noted. All of it, also if a task or a handler of signals raises in between.
    fn turn(slf: &Bound<'_, Self>) -> PyResult<()> {
        let this = slf.get();
        this.agenda.begin();
        this.agenda.poll_tasks(&this.here);
        let mut raised = Ok(());
        let at_once = !this.is_reentrant(slf.py());
        let turning = Turning::begin(at_once.then(|| slf.clone().unbind()));
        // Not those that are woken by these: the loop has other things to do as well.
        for _ in 0..this.agenda.woken() {
            let Some(slot) = this.agenda.next_woken() else { break };
            raised = raised.and(slot.go_on(slf.py(), at_once));
        }
        drop(turning);
        this.agenda.poll_tasks(&this.here);
        raised = raised.and(Self::change_watches(slf));
        if this.agenda.end() {
            raised = raised.and(Self::turn_soon(slf));
        }
        raised
    }

    /// The loop has ended: the stores learn that it watches nothing any more.
    fn close(&self) {
        self.agenda.close();
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.agenda.close();
    }
}

/// Called by the loop when a connection is readable.
#[pyclass(frozen, module = "latchwork._native")]
struct Reader {
    bridge: Py<Bridge>,
    watch: Arc<Watch>,
}

#[pymethods]
impl Reader {
    fn __call__(&self, py: Python<'_>) -> PyResult<()> {
        let bridge = self.bridge.bind(py);
        // The turn that follows needs no bell.
        bridge.get().agenda.begin();
        self.watch.is_readable();
        Bridge::turn(bridge)
    }
}
