//! The blocks that have entered a lock, the last one last.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;

pub(crate) struct Block {
    /// The number of its frame, or of its `ExitStack`.
    pub(crate) number: usize,
    /// The thread or the task that has entered it.
    pub(crate) by: Py<PyAny>,
    pub(crate) guard: Py<PyAny>,
}

#[derive(Default)]
pub(crate) struct Entered(Mutex<Vec<Block>>);

impl Entered {
    fn lock(&self) -> MutexGuard<'_, Vec<Block>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, block: Block) {
        self.lock().push(block);
    }

    /// The guard of the last block with this number.
    pub(crate) fn take(&self, number: usize) -> Option<Py<PyAny>> {
        let mut blocks = self.lock();
        let place = blocks.iter().rposition(|block| block.number == number)?;
        let Block { by, guard, .. } = blocks.remove(place);
        drop(blocks);
        // Not under the lock: this may run code of Python.
        drop(by);
        Some(guard)
    }

    /// The number of each block, and who has entered it.
    pub(crate) fn who(&self, py: Python<'_>) -> Vec<(usize, Py<PyAny>)> {
        self.lock().iter().map(|block| (block.number, block.by.clone_ref(py))).collect()
    }

    /// Each block, unless another thread changes them.
    pub(crate) fn each<Error>(
        &self,
        each: impl FnMut(&Block) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Ok(blocks) = self.0.try_lock() else { return Ok(()) };
        blocks.iter().try_for_each(each)
    }

    pub(crate) fn clear(&self) {
        let blocks = std::mem::take(&mut *self.lock());
        drop(blocks);
    }
}
