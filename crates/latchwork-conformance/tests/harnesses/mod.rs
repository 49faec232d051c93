//! The harnesses that more than one test uses.

use std::sync::Arc;

use latchwork_conformance::{Client, Expected, Harness, Store, Time};
use latchwork_core::{Fencing, Io, MemoryBackend, Verb};
use latchwork_file::FileBackend;

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

/// The file backend, in a folder of its own that ends with the store.
pub(crate) struct File;

impl Harness for File {
    fn expected(&self) -> Expected {
        Expected { fencing: Fencing::WhileDataSurvives, ..Expected::EVERYTHING }
    }

    fn time(&self) -> Time {
        Time::Real
    }

    fn fresh<'a>(&'a self, _io: &'a Io) -> Verb<'a, Store> {
        let folder = Arc::new(tempfile::tempdir().expect("a folder for the store"));
        Box::pin(async move {
            Store::new(move |io| {
                let folder = folder.clone();
                async move { Client::new(FileBackend::connect(folder.path(), io).expect("opens")) }
            })
        })
    }
}
