//! Errors of the engine as exceptions of the package.

use latchwork::{Error, ErrorKind, NotHeld};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// The name by which Python knows a kind.
fn kind(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::TimedOut => "timed_out",
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

fn made(py: Python<'_>, parts: Parts<'_>) -> PyErr {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let make = MAKE.get_or_try_init(py, || {
        Ok::<_, PyErr>(py.import("latchwork._errors")?.getattr("from_native")?.unbind())
    });
    match make.and_then(|make| make.call1(py, parts)) {
        Ok(exception) => PyErr::from_value(exception.into_bound(py)),
        Err(error) => error,
    }
}
