//! What becomes of the outcome of an operation: a value, a guard, or the end of a block.

use std::ffi::CStr;
use std::sync::Arc;

use latchwork::Error;
use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::entered::{Block, Entered};
use crate::errors::{note, raised};
use crate::outcomes::Outcome;

#[derive(Default)]
pub(crate) enum Then {
    /// It is given as it is.
    #[default]
    Given,
    /// A hold becomes a guard of this class.
    Guard(Py<PyType>),
    /// The guard becomes that of this block of a lock, which the task that runs has entered.
    Entered(Py<PyType>, Arc<Entered>, usize),
    /// The end of a block that has raised this, or nothing.
    Left(Option<Py<PyAny>>),
}

impl Then {
    /// Whether the outcome becomes a guard.
    pub(crate) fn acquires(&self) -> bool {
        matches!(self, Self::Guard(_) | Self::Entered(..))
    }

    /// Its value, or its error, on the thread of this event loop of asyncio or without one.
    pub(crate) fn apply(
        self,
        py: Python<'_>,
        outcome: Result<Outcome, Error>,
        event_loop: Option<&Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let outcome = outcome.map_err(|error| raised(py, &error));
        match self {
            Self::Given => outcome?.into_python(py, None),
            Self::Guard(class) => outcome?.into_python(py, Some(class.bind(py))),
            Self::Entered(class, blocks, number) => {
                let outcome = outcome?;
                let task = running_task(py, event_loop)?;
                let guard = outcome.into_python(py, Some(class.bind(py)))?;
                blocks.push(Block { number, by: task.unbind(), guard: guard.clone_ref(py) });
                Ok(guard)
            }
            Self::Left(body) => {
                let error = match outcome {
                    Ok(_) => return Ok(py.None()),
                    Err(error) => error,
                };
                let Some(body) = body else { return Err(error) };
                // The body's own exception is raised, and this is added to it.
                note(py, body, error)?;
                Ok(py.None())
            }
        }
    }
}

/// The task that runs on this thread. Python up to 3.11 asks the system for its process to find the loop, if it is not given.
pub(crate) fn running_task<'py>(
    py: Python<'py>,
    event_loop: Option<&Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    static CURRENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let current = CURRENT.get_or_try_init(py, || {
        Ok::<_, PyErr>(py.import("asyncio")?.getattr("current_task")?.unbind())
    })?;
    let current = current.bind(py);
    match event_loop.map_or_else(|| current.call0(), |it| current.call1((it,))) {
        Ok(task) if !task.is_none() => Ok(task),
        // It knows the tasks of trio, and says what is missing.
        _ => py.import("latchwork._loops")?.getattr("task")?.call0(),
    }
}

/// As Python says it of a coroutine.
pub(crate) fn warn_unawaited() {
    warn::<PyRuntimeWarning>(
        c"an operation of latchwork was never awaited: it was not begun. Write `await`, or use latchwork.connect()",
    );
}

/// Warns that a guard was collected.
pub(crate) fn warn_unreleased(key: &str, place: Option<&str>) {
    let place = place.map_or_else(
        || "run `python -X dev` to see where it was acquired".to_owned(),
        |place| format!("it was acquired at {place}"),
    );
    let message = format!(
        "the lock {key:?} was never released: its guard was collected, and the lock is released now; {place}. \
         Write `with lock:`, or keep the guard: `if (guard := lock.try_acquire()):`"
    );
    // A name with a zero byte is none: Rust shows it as text.
    if let Ok(message) = std::ffi::CString::new(message) {
        warn::<PyRuntimeWarning>(&message);
    }
}

/// The line of the program that runs, if Python is in its development mode.
pub(crate) fn place(py: Python<'_>) -> Option<String> {
    static PLACE: PyOnceLock<Option<Py<PyAny>>> = PyOnceLock::new();
    let found = || {
        let flags = py.import("sys")?.getattr("flags")?;
        if !flags.getattr("dev_mode")?.is_truthy()? {
            return Ok::<_, PyErr>(None);
        }
        Ok(Some(py.import("latchwork._places")?.getattr("place")?.unbind()))
    };
    let place = PLACE.get_or_try_init(py, found).ok()?.as_ref()?;
    place.call0(py).ok()?.extract(py).ok()
}

/// Warns while an object is collected, which must not disturb what is raised at the moment.
fn warn<Category: pyo3::type_object::PyTypeInfo>(message: &CStr) {
    Python::try_attach(|py| {
        let raised = PyErr::take(py);
        let category = py.get_type::<Category>();
        if let Err(error) = PyErr::warn(py, category.as_any(), message, 1) {
            error.write_unraisable(py, None);
        }
        if let Some(raised) = raised {
            raised.restore(py);
        }
    });
}
