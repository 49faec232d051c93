//! Worker processes at real Redis servers that are cut off, restarted, emptied and replaced.

#![cfg(target_os = "linux")]

use std::time::Duration;

use latchwork_nemesis::event::What;
use latchwork_nemesis::redis::{Kind, Servers};
use latchwork_nemesis::run::{Outcome, Plan};
use latchwork_nemesis::schedule::Schedule;

const TTL: Duration = Duration::from_secs(1);
const GUARD: &str = "guard=true&max_ttl=1s";
/// The masters that are replaced here are dead or told soon.
const GUARD_OF_A_SET: &str = "guard=true&max_ttl=1s&deposed=1s";

/// Plays a run with a window for each fault; where a check failed, the logs stay.
fn play(kind: Kind, options: &str, faults: &[&str], change: impl FnOnce(&mut Plan)) -> Outcome {
    let servers = Servers::start(kind, options).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_latchwork-nemesis").into();
    let mut plan = Plan::new(&servers.url(), program, folder.path().into()).ttl(TTL);
    let (fault, calm) = (Duration::from_millis(2_500), Duration::from_millis(1_500));
    // No longer than each fault's turn.
    plan.schedule = Schedule { length: fault + calm * 2, fault, calm };
    // The witness sees one thread's delays, and telling takes two of them one after the other.
    plan.bounds.told = Duration::from_millis(100);
    servers.arm(&mut plan, faults).unwrap();
    change(&mut plan);
    let outcome = plan.run(&mut |_| {}).unwrap();
    let struck = |name: &&str| outcome.history.faults.iter().any(|fault| *fault.name == **name);
    let all = faults.iter().all(struck);
    if !outcome.passed() || !all {
        let kept = folder.keep();
        panic!("{outcome}\nlogs in {}", kept.display());
    }
    outcome
}

/// Long holds of several keys, so that some are held whenever something happens.
fn many_long_holds(plan: &mut Plan) {
    plan.keys = 3;
    plan.tasks = 10;
    plan.longest = 4.0;
}

fn checked(outcome: &Outcome, check: &str) -> u64 {
    outcome.verdict(check).unwrap().checked
}

fn overlaps(outcome: &Outcome) -> u64 {
    outcome.verdict("exclusion").unwrap().exceptions
}

fn alarms(outcome: &Outcome) -> usize {
    outcome.history.events.iter().filter(|e| matches!(e.what, What::Alarm { .. })).count()
}

#[test]
fn calm() {
    let longer = Duration::from_secs(5);
    let outcome = play(Kind::Single, "", &[], |plan| plan.schedule.length = longer);
    assert!(outcome.history.faults.is_empty());
    assert!(checked(&outcome, "exclusion") > 100, "{outcome}");
    assert!(checked(&outcome, "no_false_alarm") > 100, "{outcome}");
}

#[test]
fn workers_are_killed_and_stopped() {
    let outcome = play(Kind::Single, "", &["kill", "stop"], many_long_holds);
    assert!(checked(&outcome, "takeover_bound") > 0, "{outcome}");
}

#[test]
fn the_network_and_the_scripts_fail() {
    let faults = ["cuts", "lost-answers", "flush-scripts"];
    let outcome = play(Kind::Single, "", &faults, |_| {});
    assert!(alarms(&outcome) > 0, "no fault was noticed: {outcome}");
}

#[test]
fn a_server_that_keeps_its_data_costs_no_exclusion() {
    let outcome = play(Kind::Single, "", &["restart", "freeze"], many_long_holds);
    assert!(alarms(&outcome) > 0, "no fault was noticed: {outcome}");
    assert_eq!(overlaps(&outcome), 0, "{outcome}");
}

#[test]
fn a_server_that_loses_its_data_lets_two_in_and_the_fence_orders_them() {
    let outcome = play(Kind::Single, "", &["lose-data"], many_long_holds);
    assert!(overlaps(&outcome) > 0, "the fault shows nothing: {outcome}");
}

#[test]
fn a_guarded_server_that_loses_its_data_lets_nobody_in() {
    let outcome = play(Kind::Single, GUARD, &["lose-data", "old-data"], many_long_holds);
    assert_eq!(overlaps(&outcome), 0, "{outcome}");
}

#[test]
fn a_failover_may_let_two_in_and_the_fence_orders_them() {
    play(Kind::Sentinel, "", &["failover"], many_long_holds);
}

#[test]
fn a_failover_forgets_nothing_that_all_replicas_have() {
    let outcome = play(Kind::Sentinel, "min_replicas=2", &["failover"], many_long_holds);
    assert_eq!(overlaps(&outcome), 0, "{outcome}");
}

#[test]
fn a_guarded_failover_lets_nobody_in() {
    let outcome = play(Kind::Sentinel, GUARD_OF_A_SET, &["failover"], many_long_holds);
    assert_eq!(overlaps(&outcome), 0, "{outcome}");
}

#[test]
fn a_node_of_a_cluster_is_lost() {
    play(Kind::Cluster, "", &["node-loss"], many_long_holds);
}
