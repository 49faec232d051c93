//! The harnesses that more than one test uses.

use latchwork_conformance::{Client, Expected, Harness, Store, Time};
use latchwork_core::{Fencing, Io, MemoryBackend, Verb};

/// The memory backend, on a paused clock.
pub(crate) struct Memory;

impl Harness for Memory {
    fn expected(&self) -> Expected {
        Expected { fencing: Fencing::WhileDataSurvives, ..Expected::EVERYTHING }
    }

    fn time(&self) -> Time {
        Time::Paused
    }

    fn fresh<'a>(&'a self, io: &'a Io) -> Verb<'a, Store> {
        let store = MemoryBackend::new(io.clone());
        Box::pin(
            async move { Store::new(move |_| std::future::ready(Client::new(store.beside()))) },
        )
    }
}
