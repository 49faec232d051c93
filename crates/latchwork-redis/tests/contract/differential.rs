//! Random histories through the scripts of the Redis backend, and the record.
//!
//! The server's clock stands still and is moved by hand. `LATCHWORK_SEED=17` plays that one
//! history; `LATCHWORK_HISTORIES=1000` plays so many.

use std::sync::Arc;

use latchwork::Driver;
use latchwork::block_on;
use latchwork_conformance::{Harness, differential};
use latchwork_services::{Proxy, RedisOptions};
use libtest_mimic::Trial;

use crate::one_server::OneServer;

/// Parts in a million by which a clock that stands still is slow.
const STANDS_STILL: i64 = -1_000_000;

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |name: &str, play: fn()| {
        Trial::test(name, move || {
            play();
            Ok(())
        })
    };
    vec![
        trial("the_scripts_answer_as_the_record_does", the_scripts_answer_as_the_record_does),
        trial(
            "the_guarded_scripts_answer_as_the_record_does",
            the_guarded_scripts_answer_as_the_record_does,
        ),
        trial(
            "scripts_match_the_record_for_silent_waiters",
            scripts_match_the_record_for_silent_waiters,
        ),
    ]
}

fn compare(redis: &OneServer, histories: u64, steps: usize) {
    let clock = redis.server.clock().expect("a clock of its own");
    clock.rate(STANDS_STILL).expect("it stands still");
    for seed in differential::seeds(histories) {
        let driver = Driver::start().expect("a thread");
        let io = driver.io();
        let (server, played) = (redis.server.clone(), io.clone());
        let compared = block_on(async move {
            let store = redis.fresh(&played).await;
            let pass = move |length| {
                let clock = server.clock().expect("a clock of its own");
                clock.step_forward(length).expect("a step");
            };
            differential::compare_punctual(&store, &played, pass, seed, steps).await
        });
        if let Err(difference) = compared {
            panic!("{difference}");
        }
    }
}

fn the_scripts_answer_as_the_record_does() {
    compare(&OneServer::new(2_000, RedisOptions::new().with_clock()), 4, 300);
}

fn the_guarded_scripts_answer_as_the_record_does() {
    let guarded = OneServer {
        options: "?guard=true&max_ttl=1h",
        ..OneServer::new(2_000, RedisOptions::new().with_clock())
    };
    compare(&guarded, 2, 300);
}

fn scripts_match_the_record_for_silent_waiters() {
    let proxy = |port| {
        let proxy = Proxy::redis(port).expect("a proxy");
        proxy.refuse("SUBSCRIBE", "ERR unknown command 'SUBSCRIBE'");
        proxy
    };
    let unheard = OneServer {
        proxy: Arc::new(proxy),
        ..OneServer::new(2_000, RedisOptions::new().with_clock())
    };
    compare(&unheard, 6, 300);
}
