//! Connections to stores, all of which are closed when the process ends.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use latchwork::{Error, ErrorKind, LockManager, Period, Resize, Source};
use latchwork_store::clock::boot_time;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::locks::{Kind, Lock, Once};
use crate::news::{News, Seen};
use crate::operation::Operation;
use crate::outcomes::{Object, Outcome, duration};
use crate::waiting::{are_inside, begin_to_end, block, let_none_return};

/// How long the end of the process waits for threads that were waiting for a lock.
const LEAVING: Duration = Duration::from_secs(1);

/// A manager that is in the list of those to close.
pub(crate) struct Shared {
    pub(crate) locks: LockManager,
    /// What tells of its events.
    seen: OnceLock<Arc<Seen>>,
}

fn open() -> &'static Mutex<Vec<Weak<Shared>>> {
    static OPEN: OnceLock<Mutex<Vec<Weak<Shared>>>> = OnceLock::new();
    OPEN.get_or_init(Mutex::default)
}

impl Shared {
    pub(crate) fn enlisted(locks: LockManager) -> Arc<Self> {
        let shared = Arc::new(Self { locks, seen: OnceLock::new() });
        let mut open = open().lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|other| other.strong_count() != 0);
        open.push(Arc::downgrade(&shared));
        shared
    }
}

/// Connects to a store.
#[pyfunction]
pub(crate) fn connect(url: String) -> Operation {
    Operation::new(async move {
        let locks = latchwork::connect(&url).await?;
        Ok(Outcome::Object(Box::new(Manager::of(Shared::enlisted(locks)))))
    })
}

/// Connects to a store whose address has a source: a file, a command, or a function. It is read again when the store
/// refuses the login.
#[pyfunction]
pub(crate) fn connect_from(
    file: Option<PathBuf>,
    command: Option<String>,
    function: Option<Py<PyAny>>,
) -> PyResult<Operation> {
    let source = match (file, command, function) {
        (Some(file), None, None) => Source::file(file),
        (None, Some(command), None) => Source::command(command),
        (None, None, Some(function)) => Source::read_by(move || called(&function)),
        _ => return Err(PyValueError::new_err("name one source")),
    };
    Ok(Operation::new(async move {
        let locks = latchwork::connect_from(&source).await?;
        Ok(Outcome::Object(Box::new(Manager::of(Shared::enlisted(locks)))))
    }))
}

/// The address that a function returns. An exception is named by its type alone: its text may have what it read.
fn called(function: &Py<PyAny>) -> Result<String, Error> {
    let invalid = |why: String| Error::new(ErrorKind::Invalid, format!("store: {why}"));
    let asked = Python::try_attach(|py| {
        let named = |error: PyErr| {
            let kind = error
                .get_type(py)
                .name()
                .map_or_else(|_| "an exception".into(), |it| it.to_string());
            invalid(format!("the function for the address raised {kind}"))
                .with_next_step("call it by itself to see the exception")
        };
        let address = function.call0(py).map_err(named)?;
        address.extract::<String>(py).map_err(|_| {
            invalid("the function for the address returned no text".into()).with_next_step(
                "return an address, such as redis://user:password@host; write def, not async def",
            )
        })
    });
    let address = asked.unwrap_or_else(|| Err(invalid("the interpreter ends".into())))?;
    Ok(address.trim().to_owned())
}

/// Closes all managers of the process: first their waiters are refused, then their holds are released. Then waits
/// a moment for the threads that were waiting to end. Threads that call the engine afterwards stay there.
#[pyfunction]
pub(crate) fn close_all(py: Python<'_>) -> PyResult<()> {
    let open: Vec<_> = {
        let open = open().lock().unwrap_or_else(PoisonError::into_inner);
        open.iter().filter_map(Weak::upgrade).collect()
    };
    let closing = futures_util::future::join_all(open.iter().map(|shared| shared.locks.close()));
    begin_to_end();
    block(py, closing, None)?;
    py.detach(|| {
        leave();
        let_none_return();
        // Those that were on their way.
        leave();
    });
    Ok(())
}

/// Waits a moment until no thread is inside of the engine.
fn leave() {
    let end = boot_time().plus(LEAVING);
    while are_inside() && boot_time() < end {
        #[expect(clippy::disallowed_methods, reason = "the process ends; no lock depends on it")]
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A connection to one store, with the settings of its locks.
#[pyclass(frozen, module = "latchwork._native")]
pub(crate) struct Manager {
    shared: Arc<Shared>,
    locks: LockManager,
}

impl Object for Manager {
    fn into_object(
        self: Box<Self>,
        py: Python<'_>,
        _: Option<&Bound<'_, PyType>>,
    ) -> PyResult<Py<PyAny>> {
        Ok(Py::new(py, *self)?.into_any())
    }
}

impl Manager {
    pub(crate) fn of(shared: Arc<Shared>) -> Self {
        let locks = shared.locks.clone();
        Self { shared, locks }
    }

    fn with(&self, locks: LockManager) -> Self {
        Self { shared: self.shared.clone(), locks }
    }

    fn lock_of(&self, kind: Kind) -> Lock {
        Lock::new(kind, self.shared.clone())
    }
}

/// Gives a builder of the engine those durations that are set: field, argument and method have one name.
macro_rules! with_durations {
    ($builder:ident: $($field:ident),+) => {
        $(if let Some(seconds) = $field {
            $builder = $builder.$field(duration(seconds, stringify!($field))?);
        })+
    };
}

/// Gives a builder of the engine what a lock may have of its own: the engine's builders share no trait.
macro_rules! with_options {
    ($builder:ident, $options:ident) => {
        let (ttl, fair, holder, max_hold, lock_delay) = $options;
        with_durations!($builder: ttl, max_hold, lock_delay);
        if fair {
            $builder = $builder.fair();
        }
        if let Some(holder) = holder {
            $builder = $builder.holder(holder);
        }
    };
}

/// What a lock may have of its own.
type Options = (Option<f64>, bool, Option<String>, Option<f64>, Option<f64>);

#[pymethods]
impl Manager {
    #[getter]
    fn store(&self) -> &str {
        &self.locks.capabilities().store
    }

    /// The number by which its events are known; 0 if nobody takes them.
    #[getter]
    fn number(&self) -> u64 {
        self.shared.seen.get().map_or(0, |seen| seen.connection)
    }

    /// Tells of its events, under this number.
    fn observed(&self, news: &News, number: u64) -> Self {
        let seen = self.shared.seen.get_or_init(|| news.observer(number, self.store())).clone();
        self.with(self.locks.clone().observer(seen))
    }

    fn set_text(&self, name: &str, value: String) -> PyResult<Self> {
        let locks = self.locks.clone();
        Ok(self.with(match name {
            "namespace" => locks.namespace(value),
            "holder" => locks.holder(value),
            _ => return Err(PyValueError::new_err(format!("no setting is called {name}"))),
        }))
    }

    fn set_seconds(&self, name: &str, value: f64) -> PyResult<Self> {
        let (locks, value) = (self.locks.clone(), duration(value, name)?);
        Ok(self.with(match name {
            "ttl" => locks.ttl(value),
            "max_hold" => locks.max_hold(value),
            "lock_delay" => locks.lock_delay(value),
            "renew_every" => locks.renew_every(value),
            "op_timeout" => locks.op_timeout(value),
            _ => return Err(PyValueError::new_err(format!("no setting is called {name}"))),
        }))
    }

    fn lock(&self, name: &str, options: Options) -> PyResult<Lock> {
        let lock = self.locks.mutex(name);
        Ok(self.lock_of(Kind::One(configured(lock, options)?)))
    }

    fn rwlock(&self, name: &str, options: Options) -> PyResult<(Lock, Lock)> {
        let rwlock = self.locks.rwlock(name);
        let side =
            |lock| Ok::<_, PyErr>(self.lock_of(Kind::One(configured(lock, options.clone())?)));
        Ok((side(rwlock.read())?, side(rwlock.write())?))
    }

    fn semaphore(
        &self,
        name: &str,
        of: u32,
        permits: u32,
        resize: &str,
        options: Options,
    ) -> PyResult<Lock> {
        let policy = Resize::parse(resize).ok_or_else(|| {
            PyValueError::new_err(format!("resize: never, to-mine or follow, not {resize}"))
        })?;
        let lock = self.locks.semaphore(name, of).resize_policy(policy).permits(permits);
        Ok(self.lock_of(Kind::One(configured(lock, options)?)))
    }

    fn reentrant(&self, name: &str, options: Options) -> PyResult<Lock> {
        let mut lock = self.locks.reentrant(name);
        with_options!(lock, options);
        Ok(self.lock_of(Kind::Reentrant(lock)))
    }

    fn multi(&self, names: Vec<String>, options: Options) -> PyResult<Lock> {
        let locks = names.iter().map(|name| configured(self.locks.mutex(name), options.clone()));
        let locks = locks.collect::<PyResult<Vec<_>>>()?;
        Ok(self.lock_of(Kind::Several(latchwork::MultiLock::of(locks))))
    }

    #[pyo3(signature = (name, candidate, ttl, max_hold, lock_delay, look_every))]
    fn election(
        &self,
        name: &str,
        candidate: Option<String>,
        ttl: Option<f64>,
        max_hold: Option<f64>,
        lock_delay: Option<f64>,
        look_every: Option<f64>,
    ) -> PyResult<Lock> {
        let mut election = self.locks.election(name);
        if let Some(candidate) = candidate {
            election = election.candidate(candidate);
        }
        with_durations!(election: ttl, max_hold, lock_delay, look_every);
        Ok(self.lock_of(Kind::Election(election)))
    }

    #[pyo3(signature = (name, every, tz, options))]
    fn once(
        &self,
        py: Python<'_>,
        name: &str,
        every: &str,
        tz: Option<&str>,
        options: Options,
    ) -> PyResult<Once> {
        let every = Period::parse(every, tz).map_err(|error| crate::errors::raised(py, &error))?;
        let mut once = self.locks.once(name, every);
        let (ttl, _, holder, max_hold, lock_delay) = options;
        with_durations!(once: ttl, max_hold, lock_delay);
        if let Some(holder) = holder {
            once = once.holder(holder);
        }
        Ok(Once::new(once, self.shared.clone()))
    }

    fn inspect(&self, name: String) -> Operation {
        let locks = self.locks.clone();
        Operation::new(async move { Ok(Outcome::Snapshots(vec![locks.inspect(name).await?])) })
    }

    fn list(&self, prefix: String) -> Operation {
        let locks = self.locks.clone();
        Operation::new(async move { Ok(Outcome::Snapshots(locks.list(prefix).await?)) })
    }

    fn force_release(&self, name: String) -> Operation {
        let locks = self.locks.clone();
        Operation::new(async move { Ok(Outcome::Forced(locks.force_release(name).await?)) })
    }

    fn resize(&self, name: String, of: u32) -> Operation {
        let semaphore = self.locks.semaphore(name, of);
        Operation::new(async move { Ok(Outcome::Resized(semaphore.resize().await?)) })
    }

    fn close(&self) -> Operation {
        let locks = self.locks.clone();
        if let Some(seen) = self.shared.seen.get() {
            seen.close();
        }
        Operation::new(async move {
            locks.close().await;
            Ok(Outcome::Nothing)
        })
    }
}

fn configured(mut lock: latchwork::Lock, options: Options) -> PyResult<latchwork::Lock> {
    with_options!(lock, options);
    Ok(lock)
}
