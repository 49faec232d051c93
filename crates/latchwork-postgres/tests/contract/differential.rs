//! Random histories through the functions in the database, and the record.
//!
//! The server's clock stands still and is moved by hand. `LATCHWORK_SEED=17` plays that one
//! history; `LATCHWORK_HISTORIES=1000` plays so many.

use latchwork::{Driver, block_on};
use latchwork_conformance::{Harness, differential};
use latchwork_services::PostgresOptions;
use libtest_mimic::Trial;

use crate::servers::OneServer;

/// Parts in a million by which a clock that stands still is slow.
const STANDS_STILL: i64 = -1_000_000;

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |name: &str, options: &'static str, pooled: bool, histories: u64| {
        Trial::test(name, move || {
            compare(options, pooled, histories);
            Ok(())
        })
    };
    vec![
        trial("the_functions_answer_as_the_record_does", "", false, 4),
        trial("the_guarded_functions_answer_as_the_record_does", "guard=true&max_ttl=1h", false, 2),
        trial("the_functions_answer_as_the_record_does_behind_a_pooler", "", true, 2),
    ]
}

fn compare(options: &'static str, pooled: bool, histories: u64) {
    let postgres = OneServer::on(options, pooled, PostgresOptions::new().with_clock());
    let clock = postgres.running.server.clock().expect("a clock of its own");
    clock.rate(STANDS_STILL).expect("it stands still");
    for seed in differential::seeds(histories) {
        let driver = Driver::start().expect("a thread");
        let io = driver.io();
        let (server, played, running) = (postgres.clone(), io.clone(), postgres.running.clone());
        let compared = block_on(async move {
            let store = server.fresh(&played).await;
            let pass = move |length| {
                let clock = running.server.clock().expect("a clock of its own");
                clock.step_forward(length).expect("a step");
            };
            differential::compare_punctual(&store, &played, pass, seed, 300).await
        });
        if let Err(difference) = compared {
            panic!("{difference}");
        }
    }
}
