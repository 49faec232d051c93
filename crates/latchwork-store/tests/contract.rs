//! The memory backend keeps the contract, and answers as the record that it is built on.

use latchwork_conformance::{Client, Expected, Harness, Store, Time, differential, run, trials};
use latchwork_store::{Fencing, Io, MemoryBackend, Verb};

/// The memory backend, on a paused clock.
struct Memory;

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

fn main() {
    let mut all = trials("memory", Memory);
    all.push(differential::trial("memory_answers_as_the_record_does", Memory, 300, 400));
    run(all)
}
