//! Worker processes at PostgreSQL: a primary whose standby is promoted, and one behind PgBouncer.

use std::time::Duration;

use latchwork_nemesis::stores::{Pooled, Postgres};

use crate::stores::{lost, overlaps, play};

const TTL: Duration = Duration::from_secs(1);
const GUARD: &str = "guard=true&max_ttl=1s";

#[test]
fn a_guarded_promotion_makes_no_second_holder() {
    let postgres = Postgres::start(GUARD).unwrap();
    let faults = ["failover", "crash", "kill", "truncate", "freeze"];
    let outcome = play(&postgres, TTL, &faults, |plan| plan.longest = 2.0);
    assert_eq!(overlaps(&outcome), 0, "{outcome}");
    assert!(lost(&outcome, "taken") > 0, "nothing was lost: {outcome}");
}

/// The standby has not got the last grants, or the old primary goes on for a while.
#[test]
fn an_unguarded_promotion_makes_two_fenced_holders() {
    let mut last = None;
    // What a promotion finds held is chance.
    for _ in 0..4 {
        let postgres = Postgres::start("").unwrap();
        let outcome = play(&postgres, TTL, &["failover", "split"], |plan| plan.longest = 4.0);
        if overlaps(&outcome) > 0 {
            return;
        }
        last = Some(outcome);
    }
    panic!("the fault shows nothing: {}", last.expect("it was played"));
}

/// The machines of workers are paused meanwhile, and their boot clocks stand still.
#[test]
fn the_network_of_postgres_fails_and_no_two_hold() {
    let postgres = Postgres::start("").unwrap();
    let faults = ["cuts", "lost-answers", "stop", "partition", "late", "terminate"];
    let outcome = play(&postgres, TTL, &faults, |plan| plan.frozen_clock = true);
    assert_eq!(overlaps(&outcome), 0, "{outcome}");
}

#[test]
fn a_pooler_that_fails_makes_no_second_holder() {
    let pooled = Pooled::start("").unwrap();
    let faults = ["bouncer-kill", "terminate", "kill", "partition", "crash"];
    let outcome = play(&pooled, TTL, &faults, |_| {});
    assert_eq!(overlaps(&outcome), 0, "{outcome}");
}
