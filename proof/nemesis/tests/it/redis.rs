//! Worker processes at real Redis servers that are cut off, restarted, emptied and replaced.

use std::time::Duration;

use latchwork_nemesis::event::What;
use latchwork_nemesis::redis::{Kind, Servers};
use latchwork_nemesis::run::{Outcome, Plan};
use latchwork_nemesis::schedule::Schedule;
use latchwork_nemesis::stores::Store;

use crate::stores::accept;

const TTL: Duration = Duration::from_secs(1);
const GUARD: &str = "guard=true&max_ttl=1s";
/// The masters that are replaced here are dead or told soon.
const GUARD_OF_A_SET: &str = "guard=true&max_ttl=2s&deposed=1s";
/// Here one goes on until it notices that its replicas are away: within a second and two.
const GUARD_OF_A_SPLIT_SET: &str = "guard=true&max_ttl=2s&deposed=3s";
/// Here one goes on for its `cluster-node-timeout` of 4 s, and two seconds are added to it.
const GUARD_OF_A_SPLIT_CLUSTER: &str = "guard=true&max_ttl=2s&deposed=6s";

/// Plays a run with a window for each fault; where a rule is violated, the logs stay.
fn play(kind: Kind, options: &str, faults: &[&str], change: impl FnOnce(&mut Plan)) -> Outcome {
    play_with(TTL, kind, options, faults, change)
}

fn play_with(
    ttl: Duration,
    kind: Kind,
    options: &str,
    faults: &[&str],
    change: impl FnOnce(&mut Plan),
) -> Outcome {
    let servers = Servers::start(kind, options).unwrap();
    play_at(&servers, kind, ttl, faults, change)
}

fn play_at(
    servers: &Servers,
    kind: Kind,
    ttl: Duration,
    faults: &[&str],
    change: impl FnOnce(&mut Plan),
) -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_latchwork-nemesis").into();
    let mut plan = Plan::new(&servers.url(), program, folder.path().into());
    if matches!(kind, Kind::Redlock | Kind::Cluster) {
        // Five servers that sync each write, or nine with their proxies, have enough to do with two.
        plan.processes = 2;
    }
    let mut plan = plan.ttl(ttl);
    let (fault, calm) = (Duration::from_millis(2_000), Duration::from_millis(1_300));
    // No longer than each fault's turn.
    plan.schedule = Schedule { length: fault + calm * 2, fault, calm, ..plan.schedule };
    // The witness sees one thread's delays, and telling takes two of them one after the other.
    plan.bounds.told = Duration::from_millis(100);
    if !matches!(kind, Kind::Single) {
        // Nobody measures how long several servers stand still that share the machine with other trials.
        plan.bounds.without.push("calm");
    }
    servers.arm(&mut plan, faults).unwrap();
    change(&mut plan);
    let outcome = plan.run(&mut |_| {});
    accept(servers, folder, outcome, faults)
}

/// Long holds of several keys, so that some are held whenever something happens.
fn many_long_holds(plan: &mut Plan) {
    plan.keys = 3;
    plan.tasks = 10;
    plan.longest = 4.0;
}

/// As above, with leases that last longer than a fail-over takes.
fn play_at_a_set(kind: Kind, options: &str, fault: &str) -> Outcome {
    play_with(TTL * 2, kind, options, &[fault], |plan| {
        plan.keys = 3;
        plan.tasks = 10;
    })
}

/// One master of a Cluster is cut off and replaced. Tells, too, how many holds were granted while
/// there were two masters: to workers on the side of the replaced one, and to the others.
fn play_a_split_cluster(options: &str) -> (Outcome, [usize; 2]) {
    let servers = Servers::start(Kind::Cluster, options).unwrap();
    let outcome = play_at(&servers, Kind::Cluster, TTL * 2, &["split"], |plan| {
        plan.keys = 3;
        plan.tasks = 10;
    });
    let mut granted = [0, 0];
    for split in servers.splits() {
        for attempt in &outcome.history.attempts {
            let Some(granted_at) = attempt.granted else { continue };
            if split.replaced < attempt.tried && granted_at < split.healed {
                let worker = attempt.process.trim_start_matches('w').split('.').next();
                let number: usize = worker.unwrap().parse().unwrap();
                granted[usize::from(number % 2 != split.left)] += 1;
            }
        }
    }
    (outcome, granted)
}

fn checked(outcome: &Outcome, rule: &str) -> u64 {
    outcome.verdict(rule).unwrap().examined
}

fn overlaps(outcome: &Outcome) -> u64 {
    outcome.verdict("exclusion").unwrap().excused
}

/// Expects that some run of a few shows two holders at once. What a fault finds held is chance, and on a
/// machine with little time for it there is less.
fn lets_two_in(mut play: impl FnMut() -> Outcome) {
    let mut last = None;
    for _ in 0..4 {
        let outcome = play();
        if overlaps(&outcome) > 0 {
            return;
        }
        last = Some(outcome);
    }
    panic!("the fault shows nothing: {}", last.expect("it was played"));
}

/// How many holders were told that the store did not know their claim any more.
fn forgotten(outcome: &Outcome) -> usize {
    outcome.history.lost("taken")
}

fn alarms(outcome: &Outcome) -> usize {
    outcome.history.events.iter().filter(|e| matches!(e.what, What::Alarm { .. })).count()
}

#[test]
fn calm() {
    let outcome = play(Kind::Single, "", &[], |_| {});
    assert!(outcome.history.faults.is_empty());
    assert!(checked(&outcome, "exclusion") > 100, "{outcome}");
    assert!(checked(&outcome, "calm") > 100, "{outcome}");
}

#[test]
fn workers_are_killed_and_stopped() {
    let outcome = play(Kind::Single, "", &["kill", "stop"], many_long_holds);
    assert!(checked(&outcome, "takeover") > 0, "{outcome}");
}

#[test]
fn the_next_renewal_reports_a_forced_release() {
    let outcome = play(Kind::Single, "", &["evict"], many_long_holds);
    assert!(forgotten(&outcome) > 0, "{outcome}");
    assert!(checked(&outcome, "kept") > 100, "{outcome}");
}

#[test]
fn the_network_and_the_scripts_fail() {
    let faults = ["cuts", "lost-answers", "flush-scripts"];
    let outcome = play(Kind::Single, "", &faults, |_| {});
    assert!(alarms(&outcome) > 0, "no fault was noticed: {outcome}");
}

#[test]
fn a_restart_with_data_keeps_exclusion() {
    let outcome = play(Kind::Single, "", &["restart", "freeze"], many_long_holds);
    assert!(alarms(&outcome) > 0, "no fault was noticed: {outcome}");
    assert_eq!(overlaps(&outcome), 0, "{outcome}");
}

#[test]
fn an_empty_server_makes_two_fenced_holders() {
    lets_two_in(|| play(Kind::Single, "", &["lose-data", "old-data"], many_long_holds));
}

#[test]
fn a_guarded_server_grants_nothing_after_data_loss() {
    let outcome = play(Kind::Single, GUARD, &["lose-data", "old-data"], many_long_holds);
    assert_eq!(overlaps(&outcome), 0, "{outcome}");
}

#[test]
fn a_failover_may_make_two_fenced_holders() {
    // How many claims are forgotten depends on what was granted in the master's last moments.
    play_at_a_set(Kind::Sentinel, "", "failover");
}

#[test]
fn a_failover_keeps_replicated_locks() {
    let outcome = play_at_a_set(Kind::Sentinel, "min_replicas=2", "failover");
    assert_eq!((overlaps(&outcome), forgotten(&outcome)), (0, 0), "{outcome}");
}

#[test]
fn a_guarded_failover_makes_no_second_holder() {
    let outcome = play_at_a_set(Kind::Sentinel, GUARD_OF_A_SET, "failover");
    assert_eq!(overlaps(&outcome), 0, "{outcome}");
}

/// The replaced master keeps its clients for a while, and both sides grant.
#[test]
fn a_split_makes_two_fenced_holders() {
    lets_two_in(|| play_at_a_set(Kind::Sentinel, "", "split"));
}

#[test]
fn a_guarded_split_makes_no_second_holder() {
    let outcome = play_at_a_set(Kind::Sentinel, GUARD_OF_A_SPLIT_SET, "split");
    assert_eq!(overlaps(&outcome), 0, "{outcome}");
}

#[test]
fn a_node_of_a_cluster_is_lost() {
    play_at_a_set(Kind::Cluster, "", "node-loss");
}

/// The replaced master keeps some clients until its timeout, and both sides grant.
#[test]
fn a_cluster_split_makes_two_fenced_holders() {
    lets_two_in(|| {
        let (outcome, granted) = play_a_split_cluster("");
        assert!(granted[0] > 0 && granted[1] > 0, "one side stood still, {granted:?}: {outcome}");
        outcome
    });
}

#[test]
fn a_guarded_cluster_split_makes_no_second_holder() {
    let (outcome, granted) = play_a_split_cluster(GUARD_OF_A_SPLIT_CLUSTER);
    assert!(granted[0] > 0, "the replaced master granted nothing, {granted:?}: {outcome}");
    assert_eq!(overlaps(&outcome), 0, "{outcome}");
}

/// Some of five are cut off, slow, stopped or started anew; sometimes so many that none can vote.
#[test]
fn a_majority_of_servers_is_enough() {
    let faults = ["cuts", "late-answers", "partition", "freeze", "freeze-most"];
    let outcome = play(Kind::Redlock, "max_ttl=1s", &faults, |_| {});
    assert!(alarms(&outcome) > 0, "no fault was noticed: {outcome}");
    assert_eq!(overlaps(&outcome), 0, "{outcome}");
}

#[test]
fn guarded_voters_grant_nothing_after_data_loss() {
    let faults = ["restart", "lose-data", "old-data"];
    let outcome = play(Kind::Redlock, "max_ttl=1s", &faults, many_long_holds);
    assert_eq!(overlaps(&outcome), 0, "{outcome}");
}

#[test]
fn unguarded_voters_make_two_fenced_holders() {
    lets_two_in(|| play(Kind::Redlock, "guard=false", &["lose-data", "old-data"], many_long_holds));
}
