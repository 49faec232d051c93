//! Random histories through the backends that are built on `kit::record`, and the record itself.
//!
//! `LATCHWORK_SEED=17` plays that one history; `LATCHWORK_HISTORIES=100000` plays so many.

mod harnesses;
#[path = "harnesses/histories.rs"]
mod histories;

use latchwork_conformance::{Harness, differential};

fn compare(harness: &dyn Harness, histories: u64, steps: usize) {
    for seed in histories::seeds(histories) {
        if let Err(difference) = differential::compare(harness, seed, steps) {
            panic!("{difference}");
        }
    }
}

#[test]
fn memory_answers_as_the_record_does() {
    compare(&harnesses::Memory, 300, 400);
}

/// The file backend takes its time from its `Io`, so a clock that is moved moves its leases.
#[test]
fn file_answers_as_the_record_does() {
    compare(&harnesses::File, 12, 300);
}
