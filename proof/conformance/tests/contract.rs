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
        Expected {
            upgrade: false,
            resize: false,
            linger: false,
            floor: false,
            watch: false,
            ..Expected::EVERYTHING
        }
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

/// Who follows the guide from nothing has the file that is tried as `tiny`.
fn the_guide_is_the_store_that_is_tried() -> Result<(), Failed> {
    let suites = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = std::fs::read_to_string(suites.join("../../docs/writing-a-backend.md"))?;
    let tried = std::fs::read_to_string(suites.join("tests/tiny.rs"))?;
    let blocks: Vec<&str> = guide.split("```rust\n").skip(1).collect();
    let blocks = blocks.iter().filter_map(|block| Some(block.split_once("```")?.0));
    let told = blocks.collect::<Vec<_>>().join("\n");
    match tried.split_once("\n\n") {
        Some((_, code)) if code == told => Ok(()),
        _ => Err("tests/tiny.rs is not the Rust of docs/writing-a-backend.md".into()),
    }
}

fn main() {
    let mut all = trials("line_store", LineStore);
    let enrolled = every_backend_and_every_rule_is_tried;
    all.push(Trial::test("every_backend_and_every_rule_is_tried", enrolled));
    let guide = the_guide_is_the_store_that_is_tried;
    all.push(Trial::test("the_guide_is_the_store_that_is_tried", guide));
    run(all)
}
