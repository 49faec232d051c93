//! The rules against the stand-in line store, on a paused clock: the trait fits ZooKeeper and etcd.
//! And no backend of the workspace and no rule of the contract goes untried.

use std::path::Path;
use std::sync::Arc;

use latchwork_conformance::line_store::LineBackend;
use latchwork_conformance::{
    Client, Expected, Fault, Harness, Store, Time, enrolment, run, trials,
};
use latchwork_store::{Io, Verb};
use libtest_mimic::{Failed, Trial};

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

fn every_backend_and_every_rule_is_tried() -> Result<(), Failed> {
    let suites = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = suites.join("../..");
    let page = root.join("crates/latchwork-store/src/backend.rs");
    let gaps = enrolment::gaps(&root, suites, &page)?;
    if gaps.is_empty() { Ok(()) } else { Err(gaps.join("\n").into()) }
}

fn main() {
    let mut all = trials("line_store", LineStore);
    let enrolled = every_backend_and_every_rule_is_tried;
    all.push(Trial::test("every_backend_and_every_rule_is_tried", enrolled));
    run(all)
}
