//! The file backend keeps the contract in real folders and real time, and answers as the record that
//! it is built on.

use std::sync::Arc;

use latchwork_conformance::{Client, Expected, Harness, Store, Time, differential, run, trials};
use latchwork_file::FileBackend;
use latchwork_store::{Fencing, Io, Verb};

/// The file backend, in a folder of its own that ends with the store.
struct File;

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

fn main() {
    let mut all = trials("file", File);
    // It takes its time from its `Io`, so a clock that is moved moves its leases.
    all.push(differential::trial("file_answers_as_the_record_does", File, 12, 300));
    run(all)
}
