//! Functions that need no connection: stores, and the text of fences.

use std::time::Duration;

use latchwork::fence::sql::{Dialect, Fences, Parameter};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::raised;
use crate::operation::Operation;
use crate::outcomes::Outcome;

/// Examines a store.
#[pyfunction]
pub(crate) fn doctor(url: String) -> Operation {
    Operation::new(async move { Ok(Outcome::Report(latchwork::doctor(&url).await?)) })
}

/// Prepares a store.
#[pyfunction]
pub(crate) fn init(url: String) -> Operation {
    Operation::new(async move { Ok(Outcome::Prepared(latchwork::init(&url).await?)) })
}

/// The store to use if none is named.
#[pyfunction]
pub(crate) fn default_store(py: Python<'_>) -> PyResult<String> {
    latchwork::default_store().map_err(|error| raised(py, &error))
}

/// Raises `ImportError` in a subinterpreter: one that ends would take threads away that wait in the engine.
#[pyfunction]
pub(crate) fn refuse_subinterpreters() -> PyResult<()> {
    #[expect(unsafe_code, reason = "there is no safe way to ask for the interpreter")]
    // SAFETY: this thread is attached to an interpreter, which is what both calls require.
    let id = unsafe { pyo3::ffi::PyInterpreterState_GetID(pyo3::ffi::PyInterpreterState_Get()) };
    if id == 0 {
        return Ok(());
    }
    let message = "latchwork does not support subinterpreters: use a process, or a thread of the main interpreter";
    Err(pyo3::exceptions::PyImportError::new_err(message))
}

/// The number of this process for people.
#[pyfunction]
pub(crate) fn this_process() -> String {
    latchwork_wire::this_process()
}

/// The statements of a fence in a database: creation, registration, admission, newest; each with what its parameters
/// are.
#[pyfunction]
pub(crate) fn fence_statements(
    py: Python<'_>,
    dialect: &str,
    table: &str,
    idle_limit: Option<f64>,
) -> PyResult<Vec<(String, Vec<&'static str>)>> {
    let dialect = match dialect {
        "postgresql" => Dialect::PostgreSql,
        "mysql" => Dialect::MySql,
        "sqlite" => Dialect::Sqlite,
        other => {
            let message = format!("dialect: {other:?} is not postgresql, mysql or sqlite");
            return Err(PyValueError::new_err(message));
        }
    };
    let idle_limit = idle_limit.map(|it| Duration::try_from_secs_f64(it).unwrap_or(Duration::MAX));
    let fences = Fences::new(dialect, table).map_err(|error| raised(py, &error))?;
    let fences = fences.idle_limit(idle_limit);
    let statements = [fences.register(), fences.admit(), fences.newest()];
    let named = statements.into_iter().map(|statement| {
        let parameters = statement.parameters.iter().map(|parameter| match parameter {
            Parameter::Resource => "resource",
            Parameter::Token => "token",
        });
        (statement.text, parameters.collect())
    });
    Ok([(fences.create_table(), Vec::new())].into_iter().chain(named).collect())
}

/// Lua that goes before the lines of a script.
#[pyfunction]
pub(crate) fn fence_check() -> &'static str {
    latchwork_redis::fence::CHECK
}
