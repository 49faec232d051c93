//! The results of operations, and how Python sees them.

use std::sync::Arc;
use std::time::Duration;

use latchwork::once::{Begun, Reset, Skipped};
use latchwork::store::doctor::{Prepared, Report};
use latchwork::store::{Mode, Party, Shape, Snapshot};
use latchwork::{ForceReleased, Leader, Lost};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyType};

use crate::holds::{Held, Hold, released};
use crate::managers::{Manager, Shared};

/// The result of an operation.
pub(crate) enum Outcome {
    Nothing,
    /// The guard of this key had released it.
    ReleasedBefore(String),
    Manager(Arc<Shared>),
    Hold(Box<Hold>),
    Begun(Box<Begun>, Arc<Shared>),
    Reset(Reset),
    Lost(Option<Lost>),
    Leader(Option<Leader>),
    /// The end of a stream.
    End,
    Snapshots(Vec<Snapshot>),
    Forced(ForceReleased),
    Report(Report),
    Prepared(Prepared),
}

impl Outcome {
    pub(crate) fn hold(held: Option<Held>, shared: &Arc<Shared>) -> Self {
        held.map_or(Self::Nothing, |held| Self::Hold(Box::new(Hold::new(held, shared.clone()))))
    }

    /// The value for Python. A hold becomes a guard of this class.
    pub(crate) fn into_python(
        self,
        py: Python<'_>,
        guard: Option<&Bound<'_, PyType>>,
    ) -> PyResult<Py<PyAny>> {
        Ok(match self {
            Self::Nothing => py.None(),
            Self::ReleasedBefore(key) => return Err(released(&key)),
            Self::Manager(shared) => Py::new(py, Manager::of(shared))?.into_any(),
            Self::Hold(hold) => guard_of(py, *hold, guard)?,
            Self::Begun(begun, shared) => match *begun {
                Begun::Run(run) => guard_of(py, Hold::new(Held::Run(run), shared), guard)?,
                Begun::Skipped(why) => skipped(py, &why)?.into_any().unbind(),
            },
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

fn guard_of(py: Python<'_>, hold: Hold, class: Option<&Bound<'_, PyType>>) -> PyResult<Py<PyAny>> {
    match class {
        Some(class) => hold.into_guard(class),
        None => Ok(Py::new(py, hold)?.into_any()),
    }
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
    one.set_item(
        "token",
        party.token.map(|token| latchwork::FencingToken::from_grant(token).get()),
    )?;
    one.set_item("remaining", party.remaining.map(seconds))?;
    one.set_item("age", party.age.map(seconds))?;
    Ok(one)
}
