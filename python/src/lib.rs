//! The native half of the Python package: the engine's verbs as operations that a thread or an event loop waits for.
//!
//! What users see is written in Python, in `latchwork/`; this module has no API that is promised.

mod agenda;
mod bell;
mod blocks;
mod bridge;
mod counts;
mod entered;
mod errors;
mod greenlets;
mod holds;
mod locks;
mod managers;
mod news;
mod operation;
mod outcomes;
mod polled;
mod stores;
mod test_stores;
mod then;
mod waiter;
mod waiting;

use pyo3::prelude::*;

/// The native half of `latchwork`. Nothing has been tried without the GIL, so Python keeps it.
#[pymodule(gil_used = true)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<bridge::Bridge>()?;
    module.add_class::<operation::Operation>()?;
    module.add_class::<waiter::Waiter>()?;
    module.add_class::<polled::Polled>()?;
    module.add_class::<managers::Manager>()?;
    module.add_class::<locks::Lock>()?;
    module.add_class::<blocks::Blocks>()?;
    module.add_class::<locks::Observing>()?;
    module.add_class::<locks::Once>()?;
    module.add_class::<holds::Hold>()?;
    module.add_class::<holds::Fate>()?;
    module.add_class::<news::News>()?;
    module.add_class::<test_stores::TestStore>()?;
    module.add_function(wrap_pyfunction!(blocks::import_errors, module)?)?;
    module.add_function(wrap_pyfunction!(blocks::block, module)?)?;
    module.add_function(wrap_pyfunction!(blocks::is_closed, module)?)?;
    module.add_function(wrap_pyfunction!(counts::counts, module)?)?;
    module.add_function(wrap_pyfunction!(managers::connect, module)?)?;
    module.add_function(wrap_pyfunction!(managers::connect_from, module)?)?;
    module.add_function(wrap_pyfunction!(managers::close_all, module)?)?;
    module.add_function(wrap_pyfunction!(waiting::after_fork, module)?)?;
    module.add_function(wrap_pyfunction!(stores::doctor, module)?)?;
    module.add_function(wrap_pyfunction!(stores::init, module)?)?;
    module.add_function(wrap_pyfunction!(stores::default_store, module)?)?;
    module.add_function(wrap_pyfunction!(stores::refuse_subinterpreters, module)?)?;
    module.add_function(wrap_pyfunction!(stores::this_process, module)?)?;
    module.add_function(wrap_pyfunction!(stores::fence_statements, module)?)?;
    module.add_function(wrap_pyfunction!(stores::fence_check, module)?)?;
    Ok(())
}
