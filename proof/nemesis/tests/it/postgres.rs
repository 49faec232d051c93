//! Worker processes at PostgreSQL: a primary whose standby is promoted, and one behind PgBouncer.

use std::time::Duration;

use latchwork_nemesis::run::Plan;
use latchwork_nemesis::stores::{Pooled, Postgres};

use crate::stores::{overlaps, play, play_strictly};

const TTL: Duration = Duration::from_secs(1);
const GUARD: &str = "guard=true&max_ttl=1s";

/// Long holds of several keys, so that some are held whenever something happens.
fn many_long_holds(plan: &mut Plan) {
    (plan.keys, plan.tasks, plan.longest) = (3, 10, 4.0);
}

#[test]
fn a_guarded_promotion_makes_no_second_holder() {
    let postgres = Postgres::start(GUARD).unwrap();
    let outcome = play(&postgres, TTL, &["failover", "truncate", "crash"], many_long_holds);
    assert_eq!(overlaps(&outcome), 0, "{outcome}");
}

/// The standby has not got the last grants, or the old primary goes on for a while.
#[test]
fn an_unguarded_promotion_makes_two_fenced_holders() {
    let mut last = None;
    // What a promotion finds held is chance.
    for _ in 0..4 {
        let postgres = Postgres::start("").unwrap();
        let outcome = play(&postgres, TTL, &["failover", "split"], many_long_holds);
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
    let faults = ["bouncer-kill", "terminate", "partition", "crash"];
    let outcome = play(&pooled, TTL, &faults, |_| {});
    assert_eq!(overlaps(&outcome), 0, "{outcome}");
}

/// With all rules, also those that a busy machine disturbs where a ttl is short.
#[test]
fn a_killed_worker_of_postgres_is_replaced_in_time() {
    let postgres = Postgres::start("").unwrap();
    play_strictly(&postgres);
}
