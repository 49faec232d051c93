//! The blocks that have entered a lock, and `with` and `async with` themselves.

use std::sync::Arc;

use pyo3::exceptions::{PyGeneratorExit, PyRuntimeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pyclass::{PyTraverseError, PyVisit};
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

use crate::entered::{Block, Entered};
use crate::errors;
use crate::holds::Hold;
use crate::locks::Lock;
use crate::operation::Operation;
use crate::then::{Then, running_task};

/// As the module `inspect` has it, whose import takes long.
const CO_ASYNC_GENERATOR: u32 = 0x200;

/// The blocks that have entered a lock. Each leaves with its own guard: of several in one block, with the innermost.
#[pyclass(frozen, subclass, module = "latchwork._native")]
pub(crate) struct Blocks(Arc<Entered>);

/// What the package has in Python.
pub(crate) struct Package {
    frame: Py<PyAny>,
    threading: Py<PyModule>,
    nothing: Py<PyAny>,
    guard: Py<PyType>,
    async_guard: Py<PyType>,
}

pub(crate) fn package(py: Python<'_>) -> PyResult<&'static Package> {
    static PACKAGE: PyOnceLock<Package> = PyOnceLock::new();
    PACKAGE.get_or_try_init(py, || {
        let guards = py.import("latchwork._guards")?;
        Ok(Package {
            frame: py.import("sys")?.getattr("_getframe")?.unbind(),
            threading: py.import("threading")?.unbind(),
            nothing: py.import("latchwork._loops")?.getattr("nothing")?.unbind(),
            guard: guards.getattr("Guard")?.cast_into::<PyType>()?.unbind(),
            async_guard: guards.getattr("AsyncGuard")?.cast_into::<PyType>()?.unbind(),
        })
    })
}

impl Package {
    /// The number of the block that is entered or left now, and its frame. Callbacks of C have none, or from CPython 3.15 on
    /// one without code, and the number 0.
    fn place<'py>(&self, py: Python<'py>) -> PyResult<(usize, Option<Bound<'py, PyAny>>)> {
        let Ok(frame) = self.frame.bind(py).call0() else { return Ok((0, None)) };
        Ok((block(&frame)?, Some(frame)))
    }

    /// The number of this thread. It is looked up each time: gevent puts that of the greenlet in its place.
    fn thread<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.threading.bind(py).call_method0(intern!(py, "get_ident"))
    }
}

/// The file that `ExitStack` enters and leaves from.
fn stacks(py: Python<'_>) -> PyResult<&Py<PyAny>> {
    static STACKS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    STACKS.get_or_try_init(py, || {
        let enter = py.import("contextlib")?.getattr("ExitStack")?.getattr("enter_context")?;
        Ok(enter.getattr("__code__")?.getattr("co_filename")?.unbind())
    })
}

/// The number of the block that is entered or left in this frame: that of the frame, or of what an `ExitStack` is to leave,
/// which `pop_all()` gives to another stack.
#[pyfunction]
pub(crate) fn block(frame: &Bound<'_, PyAny>) -> PyResult<usize> {
    let py = frame.py();
    let code = frame.getattr(intern!(py, "f_code"))?;
    if code.is_none() {
        return Ok(0);
    }
    let file = code.getattr(intern!(py, "co_filename"))?;
    if file.eq(stacks(py)?)?
        && let Ok(stack) = frame.getattr(intern!(py, "f_locals"))?.get_item(intern!(py, "self"))
    {
        let blocks = stack.getattr(intern!(py, "_exit_callbacks")).unwrap_or(stack);
        return Ok(blocks.as_ptr().addr());
    }
    Ok(frame.as_ptr().addr())
}

/// Whether a block ends because its coroutine is closed, as those of an event loop are that has ended: then it must not
/// await. An asynchronous generator that is closed may.
#[pyfunction]
pub(crate) fn is_closed(kind: &Bound<'_, PyAny>, frame: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = frame.py();
    if !kind.is(py.get_type::<PyGeneratorExit>()) {
        return Ok(false);
    }
    let code = frame.getattr(intern!(py, "f_code"))?;
    if code.is_none() {
        return Ok(false);
    }
    Ok(code.getattr(intern!(py, "co_flags"))?.extract::<u32>()? & CO_ASYNC_GENERATOR == 0)
}

impl Blocks {
    /// The guard of the block with this number. Of several, and where a block is left by another one than has entered, as
    /// fixtures enter and leave by calls: that of the block that this thread or task has entered last, or of the only one.
    fn leave<'py>(
        slf: &Bound<'py, Self>,
        number: usize,
        by: impl FnOnce() -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let blocks = &slf.get().0;
        if let Some(guard) = blocks.take_only(number) {
            return Ok(guard.into_bound(py));
        }
        let (by, entered) = (by()?, blocks.all(py));
        let (mut own, mut here, mut own_here) = (None, None, None);
        for block in &entered {
            let is_own = block.by.bind(py).eq(&by)?;
            let is_here = block.number == number;
            own = if is_own { Some(block) } else { own };
            here = if is_here { Some(block) } else { here };
            own_here = if is_own && is_here { Some(block) } else { own_here };
        }
        let first = entered.first().map(|it| it.number);
        let is_only = entered.iter().all(|block| Some(block.number) == first);
        let only = entered.last().filter(|_| is_only);
        let found = own_here.or(here).or(own).or(only);
        let found = found.and_then(|block| blocks.take(&block.guard));
        let found = found.map(|guard| guard.into_bound(py));
        found.ok_or_else(|| {
            let name = slf.getattr(intern!(slf.py(), "_name")).and_then(|name| name.repr());
            let name = name.map(|name| name.to_string()).unwrap_or_default();
            PyRuntimeError::new_err(format!(
                "the lock {name} was not entered by this thread or task: where a block is left by another one, \
                 use `with lock.acquire() as guard`"
            ))
        })
    }

    fn native<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Lock>> {
        Ok(slf.getattr(intern!(slf.py(), "_native"))?.cast_into::<Lock>()?)
    }
}

#[pymethods]
impl Blocks {
    #[new]
    #[pyo3(signature = (*_args, **_more))]
    fn new(_args: &Bound<'_, PyTuple>, _more: Option<&Bound<'_, PyDict>>) -> Self {
        Self(Arc::default())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.0.each(|Block { by, guard, .. }| {
            visit.call(by)?;
            visit.call(guard)
        })
    }

    fn __clear__(&self) {
        self.0.clear();
    }

    /// The guard becomes that of this block, which this thread or task has entered.
    fn _push(&self, number: usize, by: Py<PyAny>, guard: Py<PyAny>) {
        self.0.push(Block { number, by, guard });
    }

    /// Acquires for a thread, in `with`.
    fn _enter(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        let package = package(py)?;
        let number = package.place(py)?.0;
        let lock = Self::native(slf)?;
        let operation = lock.get().acquiring(None);
        let guard = operation.waited(py, Then::Guard(package.guard.clone_ref(py)))?;
        // Python handles a signal of this moment when the call has returned, and then no block leaves.
        if let Err(raised) = py.check_signals() {
            if let Ok(hold) = guard.bind(py).cast::<Hold>() {
                hold.get().forget();
            }
            return Err(raised);
        }
        let (by, guarded) = (package.thread(py)?.unbind(), guard.clone_ref(py));
        slf.get().0.push(Block { number, by, guard: guarded });
        Ok(guard)
    }

    /// Leaves a block of a thread. What was skipped is no hold, and has no end.
    fn _leave(
        slf: &Bound<'_, Self>,
        kind: Bound<'_, PyAny>,
        raised: Bound<'_, PyAny>,
        trace: Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let py = slf.py();
        let package = package(py)?;
        let guard = Self::leave(slf, package.place(py)?.0, || package.thread(py))?;
        let Ok(hold) = guard.cast::<Hold>() else { return Ok(()) };
        if !raised.is_none() || !guard.get_type().is(&package.guard) {
            guard.call_method1(intern!(py, "__exit__"), (kind, raised, trace))?;
        } else if !hold.get().is_released() {
            hold.get().releasing().waited(py, Then::Given)?;
        }
        Ok(())
    }

    /// Acquires for a task, in `async with`. It is no coroutine: the operation itself is awaited.
    fn _enter_async<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Operation>> {
        let py = slf.py();
        let package = package(py)?;
        let number = package.place(py)?.0;
        Self::_entering(slf, number)
    }

    /// The same, for this block.
    fn _entering<'py>(slf: &Bound<'py, Self>, number: usize) -> PyResult<Bound<'py, Operation>> {
        let py = slf.py();
        let lock = Self::native(slf)?;
        let owner = match lock.get().is_reentrant() {
            true => Some(py.import("latchwork._loops")?.call_method0("task_owner")?.extract()?),
            false => None,
        };
        let class = package(py)?.async_guard.clone_ref(py);
        let then = Then::Entered(class, slf.get().0.clone(), number);
        Bound::new(py, lock.get().acquiring(owner).awaited(then))
    }

    /// Leaves a block of a task.
    fn _leave_async<'py>(
        slf: &Bound<'py, Self>,
        kind: Bound<'py, PyAny>,
        raised: Bound<'py, PyAny>,
        _trace: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let package = package(py)?;
        let (number, frame) = package.place(py)?;
        let guard = Self::leave(slf, number, || running_task(py, None))?;
        let Ok(hold) = guard.cast::<Hold>() else { return package.nothing.bind(py).call0() };
        if let Some(frame) = frame
            && is_closed(&kind, &frame)?
        {
            hold.get().forget();
            return package.nothing.bind(py).call0();
        }
        let then = Then::Left((!raised.is_none()).then(|| raised.clone().unbind()));
        if guard.get_type().is(&package.async_guard) {
            return Ok(Bound::new(py, hold.get().releasing().awaited(then))?.into_any());
        }
        let leaving = guard.call_method1(intern!(py, "_leave"), (raised,))?;
        Ok(Operation::with(leaving.cast_into::<Operation>()?, then).into_any())
    }
}

/// Imports what makes exceptions and ends blocks, while the interpreter can: at its end it imports nothing any more.
#[pyfunction]
pub(crate) fn import_errors(py: Python<'_>) -> PyResult<()> {
    package(py)?;
    errors::import(py)
}
