//! A store for tests of programs: the test has its clock and its answers in its hands.

use latchwork::testing;
use pyo3::prelude::*;

use crate::managers::{Manager, Shared};
use crate::operation::Operation;
use crate::outcomes::{Outcome, duration, seconds};

/// A store in memory whose clock is paused.
#[pyclass(frozen, module = "latchwork._native")]
pub(crate) struct TestStore(testing::TestStore);

#[pymethods]
impl TestStore {
    #[new]
    fn new() -> Self {
        Self(testing::TestStore::new())
    }

    /// Another client of the store.
    fn manager(&self) -> Manager {
        Manager::of(Shared::enlisted(self.0.locks()))
    }

    #[getter]
    fn elapsed(&self) -> f64 {
        seconds(self.0.elapsed())
    }

    fn advance(&self, by: f64) -> PyResult<Operation> {
        let (store, by) = (self.0.clone(), duration(by, "seconds")?);
        Ok(Operation::new(async move {
            store.advance(by).await;
            Ok(Outcome::Nothing)
        }))
    }

    fn suspend(&self, by: f64) -> PyResult<Operation> {
        let (store, by) = (self.0.clone(), duration(by, "seconds")?);
        Ok(Operation::new(async move {
            store.suspend(by).await;
            Ok(Outcome::Nothing)
        }))
    }

    fn pause_machine(&self, by: f64) -> PyResult<()> {
        self.0.pause_machine(duration(by, "seconds")?);
        Ok(())
    }

    fn settle(&self) -> Operation {
        let store = self.0.clone();
        Operation::new(async move {
            store.settle().await;
            Ok(Outcome::Nothing)
        })
    }

    fn take_away(&self, key: String) -> Operation {
        let store = self.0.clone();
        Operation::new(async move {
            store.take_away(key).await;
            Ok(Outcome::Nothing)
        })
    }

    fn set_reachable(&self, reachable: bool) {
        self.0.set_reachable(reachable);
    }
}
