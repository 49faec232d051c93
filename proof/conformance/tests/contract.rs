//! The rules against the stand-in line store, on a paused clock: the trait fits ZooKeeper and etcd.

use std::sync::Arc;

use latchwork_conformance::line_store::LineBackend;
use latchwork_conformance::{Client, Expected, Fault, Harness, Store, Time};
use latchwork_store::{Io, Verb};

struct LineStore;

impl Harness for LineStore {
    fn expected(&self) -> Expected {
        Expected { linger: false, floor: false, ..Expected::EVERYTHING }
    }

    fn time(&self) -> Time {
        Time::Paused
    }

    fn fresh<'a>(&'a self, io: &'a Io) -> Verb<'a, Store> {
        let first = LineBackend::new(io.clone());
        Box::pin(async move {
            Store::new(move |io| {
                let client = first.beside(io);
                std::future::ready(Client::new(client.clone()).on_fault(fault(client)))
            })
        })
    }
}

fn fault(client: Arc<LineBackend>) -> impl Fn(Fault) + Send + Sync {
    move |fault| client.set_fault(fault)
}

fn main() {
    latchwork_conformance::main("line_store", LineStore);
}
