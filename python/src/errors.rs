//! Errors of the engine as exceptions of the package.

use latchwork::{Error, ErrorKind, NotHeld};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// The name by which Python knows a kind.
fn kind(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::TimedOut => "timed_out",
        ErrorKind::UpgradeConflict => "upgrade_conflict",
        ErrorKind::Unreachable => "unreachable",
        ErrorKind::Busy => "busy",
        ErrorKind::Denied => "denied",
        ErrorKind::Unsupported => "unsupported",
        ErrorKind::Mismatch => "mismatch",
        ErrorKind::Invalid => "invalid",
        ErrorKind::Closed => "closed",
        ErrorKind::Lost => "lost",
        ErrorKind::Forked => "forked",
        ErrorKind::Corrupt => "corrupt",
        _ => "other",
    }
}

/// The exception of the package for an error.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let lost = error.lost().map(|lost| lost.reason.word());
    made(
        py,
        (
            kind(error.kind()),
            error.to_string(),
            error.message(),
            error.next_step(),
            error.key().map(|key| key.as_str()),
            error.store(),
            lost,
        ),
    )
}

/// The exception for a hold that has ended.
pub(crate) fn released(py: Python<'_>, key: &str) -> PyErr {
    let message = "the lock was released by this guard before";
    let hint = "acquire it again for what is still to do";
    let text = format!("{message} (key {key:?}); {hint}");
    made(py, ("released", text, message, Some(hint), Some(key), None, None))
}

/// The exception for a hold that `ensure_held` did not confirm.
pub(crate) fn not_held(py: Python<'_>, why: NotHeld, key: &str) -> PyErr {
    let (kind, lost, hint) = match why {
        NotHeld::Lost(lost) => {
            ("lost", Some(lost.reason.word()), "stop working: another holder may have the lock")
        }
        _ => ("suspect", None, "wait until the store confirms the hold, then check again"),
    };
    let message = why.to_string();
    let text = format!("{message} (key {key:?}); {hint}");
    made(py, (kind, text, &*message, Some(hint), Some(key), None, lost))
}

type Parts<'a> = (
    &'static str,
    String,
    &'a str,
    Option<&'a str>,
    Option<&'a str>,
    Option<&'a str>,
    Option<&'static str>,
);

/// The package's functions for exceptions.
struct Makers {
    from_native: Py<PyAny>,
    note: Py<PyAny>,
}

fn makers(py: Python<'_>) -> PyResult<&'static Makers> {
    static MAKERS: PyOnceLock<Makers> = PyOnceLock::new();
    MAKERS.get_or_try_init(py, || {
        let from_native = py.import("latchwork._errors")?.getattr("from_native")?.unbind();
        let note = py.import("latchwork._guards")?.getattr("note")?.unbind();
        Ok(Makers { from_native, note })
    })
}

/// Imports what makes exceptions.
pub(crate) fn import(py: Python<'_>) -> PyResult<()> {
    makers(py).map(drop)
}

/// Adds the error of a release to what its block has raised.
pub(crate) fn note(py: Python<'_>, body: Py<PyAny>, error: PyErr) -> PyResult<()> {
    makers(py)?.note.call1(py, (body, error.into_value(py))).map(drop)
}

fn made(py: Python<'_>, parts: Parts<'_>) -> PyErr {
    match makers(py).and_then(|makers| makers.from_native.call1(py, parts)) {
        Ok(exception) => PyErr::from_value(exception.into_bound(py)),
        Err(error) => error,
    }
}
