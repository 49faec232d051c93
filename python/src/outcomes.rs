//! The results of operations, and how Python sees them.

use std::time::Duration;

use latchwork::once::{Reset, Skipped};
use latchwork::{FencingToken, ForceReleased, Leader, Lost, Resized};
use latchwork_store::doctor::{Prepared, Report};
use latchwork_store::{Mode, Party, Shape, Snapshot};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyType};

use crate::errors::released;

/// The result of an operation.
pub(crate) enum Outcome {
    Nothing,
    /// The guard of this key had released it.
    ReleasedBefore(String),
    /// What becomes an object of one of the package's classes.
    Object(Box<dyn Object>),
    Skipped(Skipped),
    Reset(Reset),
    Lost(Option<Lost>),
    Token(FencingToken),
    Leader(Option<Leader>),
    /// The end of a stream.
    End,
    Snapshots(Vec<Snapshot>),
    Forced(ForceReleased),
    Resized(Resized),
    Report(Report),
    Prepared(Prepared),
}

/// What becomes an object of one of the package's classes; a hold becomes a guard of the class that is given.
pub(crate) trait Object: Send {
    fn into_object(
        self: Box<Self>,
        py: Python<'_>,
        guard: Option<&Bound<'_, PyType>>,
    ) -> PyResult<Py<PyAny>>;
}

impl Outcome {
    /// The value for Python. A hold becomes a guard of this class.
    pub(crate) fn into_python(
        self,
        py: Python<'_>,
        guard: Option<&Bound<'_, PyType>>,
    ) -> PyResult<Py<PyAny>> {
        Ok(match self {
            Self::Nothing => py.None(),
            Self::ReleasedBefore(key) => return Err(released(py, &key)),
            Self::Object(object) => object.into_object(py, guard)?,
            Self::Skipped(why) => skipped(py, &why)?.into_any().unbind(),
            Self::Reset(reset) => match reset {
                Reset::Opened { closed_for } => ("opened", closed_for.map(seconds), None::<String>),
                Reset::NotClosed => ("not_closed", None, None),
                Reset::Running { holder } => ("running", None, holder.map(|it| it.to_string())),
                _ => ("other", None, None),
            }
            .into_pyobject(py)?
            .into_any()
            .unbind(),
            Self::Lost(lost) => {
                let said = lost.map(|lost| (lost.reason.word(), lost.to_string()));
                said.into_pyobject(py)?.into_any().unbind()
            }
            Self::Token(token) => token.get().into_pyobject(py)?.into_any().unbind(),
            Self::Leader(leader) => {
                let leader = leader.map(|it| (it.candidate.to_string(), it.term.get()));
                leader.into_pyobject(py)?.into_any().unbind()
            }
            Self::End => py.Ellipsis(),
            Self::Snapshots(found) => {
                let list = PyList::empty(py);
                for snapshot in &found {
                    list.append(view(py, snapshot)?)?;
                }
                list.into_any().unbind()
            }
            Self::Forced(forced) => {
                let evicted = PyList::empty(py);
                for other in &forced.evicted {
                    evicted.append(party(py, other)?)?;
                }
                let token = forced.token.map(|token| token.get());
                (evicted, token).into_pyobject(py)?.into_any().unbind()
            }
            Self::Resized(resized) => {
                let (before, limit, held) = match resized {
                    Resized::Yes { from, to, held } => (Some(from), Some(to), Some(held)),
                    Resized::Unused => (None, None, None),
                };
                (before, limit, held, resized.to_string()).into_pyobject(py)?.into_any().unbind()
            }
            Self::Report(report) => {
                let findings = PyList::empty(py);
                for it in &report.findings {
                    let found = PyDict::new(py);
                    found.set_item("severity", it.severity.word())?;
                    found.set_item("code", it.code)?;
                    found.set_item("part", it.part.as_deref())?;
                    found.set_item("found", &it.found)?;
                    found.set_item("consequence", &it.consequence)?;
                    found.set_item("remedy", &it.remedy)?;
                    findings.append(found)?;
                }
                (&*report.store, findings).into_pyobject(py)?.into_any().unbind()
            }
            Self::Prepared(prepared) => {
                (&*prepared.store, prepared.steps).into_pyobject(py)?.into_any().unbind()
            }
        })
    }
}

/// Seconds as a duration; a bad number names its field.
pub(crate) fn duration(seconds: f64, field: &str) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        PyValueError::new_err(format!("{field}: {seconds} is not a number of seconds from 0 up"))
    })
}

pub(crate) fn seconds(length: Duration) -> f64 {
    length.as_secs_f64()
}

fn skipped<'py>(py: Python<'py>, why: &Skipped) -> PyResult<Bound<'py, PyDict>> {
    let said = PyDict::new(py);
    said.set_item("text", why.to_string())?;
    match why {
        Skipped::Done { closed_for, by, at, .. } => {
            said.set_item("why", "done")?;
            said.set_item("holder", by.as_deref())?;
            said.set_item("closed_for", closed_for.map(seconds))?;
            said.set_item("at", at.map(seconds))?;
        }
        Skipped::Running { holder } => {
            said.set_item("why", "running")?;
            said.set_item("holder", holder.as_deref())?;
        }
        Skipped::Quarantine { left } => {
            said.set_item("why", "quarantine")?;
            said.set_item("closed_for", left.map(seconds))?;
        }
        _ => said.set_item("why", "other")?,
    }
    Ok(said)
}

/// A key's state.
fn view<'py>(py: Python<'py>, seen: &Snapshot) -> PyResult<Bound<'py, PyDict>> {
    let view = PyDict::new(py);
    view.set_item("key", seen.key.as_str())?;
    let (kind, permits) = match seen.shape {
        Some(Shape::Mutex) => (Some("mutex"), None),
        Some(Shape::ReadWrite) => (Some("rwlock"), None),
        Some(Shape::Semaphore { of }) => (Some("semaphore"), Some(of)),
        None => (None, None),
    };
    view.set_item("kind", kind)?;
    view.set_item("permits", permits)?;
    for (name, parties) in [("holders", &seen.holders), ("waiters", &seen.waiters)] {
        let list = PyList::empty(py);
        for other in parties {
            list.append(party(py, other)?)?;
        }
        view.set_item(name, list)?;
    }
    view.set_item("token", seen.token)?;
    view.set_item("closed_for", seen.linger.map(seconds))?;
    view.set_item("closed_by", seen.closed_by.as_ref().map(|by| by.text.to_string()))?;
    view.set_item("notes", &seen.notes)?;
    Ok(view)
}

fn party<'py>(py: Python<'py>, party: &Party) -> PyResult<Bound<'py, PyDict>> {
    let one = PyDict::new(py);
    let permits = match party.mode {
        Mode::Permits { take, .. } => Some(take),
        _ => None,
    };
    one.set_item("mode", party.mode.word())?;
    one.set_item("permits", permits)?;
    one.set_item("holder", &*party.holder.text)?;
    one.set_item("token", party.token.map(|token| FencingToken::from_grant(token).get()))?;
    one.set_item("remaining", party.remaining.map(seconds))?;
    one.set_item("age", party.age.map(seconds))?;
    Ok(one)
}
