//! The blocks that have entered a lock, the last one last.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;

pub(crate) struct Block {
    /// The number of its frame, or of what its `ExitStack` is to leave. Blocks that are entered by calls may share one, because a frame
    /// that has ended leaves its place to another.
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

    /// The guard of the block with this number, if there is just one.
    pub(crate) fn take_only(&self, number: usize) -> Option<Py<PyAny>> {
        let mut blocks = self.lock();
        let mut places = (0..blocks.len()).filter(|place| blocks[*place].number == number);
        let (Some(place), None) = (places.next(), places.next()) else { return None };
        drop(places);
        let block = blocks.remove(place);
        drop(blocks);
        Some(block.guard)
    }

    /// The guard of the block that has this one.
    pub(crate) fn take(&self, guard: &Py<PyAny>) -> Option<Py<PyAny>> {
        let mut blocks = self.lock();
        let place = blocks.iter().rposition(|block| block.guard.is(guard))?;
        let block = blocks.remove(place);
        drop(blocks);
        Some(block.guard)
    }

    /// Each block.
    pub(crate) fn all(&self, py: Python<'_>) -> Vec<Block> {
        let copy = |Block { number, by, guard }: &Block| {
            let (number, by, guard) = (*number, by.clone_ref(py), guard.clone_ref(py));
            Block { number, by, guard }
        };
        self.lock().iter().map(copy).collect()
    }

    /// Calls `each` for each block, unless another thread changes them.
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
