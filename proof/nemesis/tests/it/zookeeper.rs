//! Worker processes at three ZooKeeper servers that are killed, stopped, silenced, wiped and cut off,
//! alone and beside kazoo.

use std::time::Duration;

use latchwork_nemesis::foreign::Foreign;
use latchwork_nemesis::stores::ZooKeeper;

use crate::stores::{lost, overlaps, play};

const TTL: Duration = Duration::from_millis(1_500);

#[test]
fn members_of_zookeeper_fail_and_no_two_hold() {
    let zookeeper = ZooKeeper::start("").unwrap();
    let faults = ["leader-kill", "silence", "kill", "member-wipe"];
    let outcome = play(&zookeeper, TTL, &faults, |_| {});
    assert_eq!(overlaps(&outcome), 0, "{outcome}");
}

/// The machines of workers are paused meanwhile, and their boot clocks stand still.
#[test]
fn the_network_of_zookeeper_fails_and_no_two_hold() {
    let zookeeper = ZooKeeper::start("").unwrap();
    let faults = ["cuts", "lost-answers", "stop", "partition", "leader-stop"];
    let outcome = play(&zookeeper, TTL, &faults, |plan| plan.frozen_clock = true);
    assert_eq!(overlaps(&outcome), 0, "{outcome}");
}

/// kazoo stands in the same queues. What it does not promise may happen to it alone.
#[test]
fn kazoo_and_workers_never_hold_together() {
    let zookeeper = ZooKeeper::start("").unwrap();
    let outcome = play(&zookeeper, TTL, &["kill", "cuts", "delete", "leader-kill"], |plan| {
        plan.foreign = Some(Foreign::KAZOO);
        plan.longest = 2.0;
    });
    let of_kazoo = outcome.history.attempts.iter().filter(|a| a.process.starts_with("kazoo"));
    let held = of_kazoo.filter(|a| a.hold.is_some()).count();
    let taken = lost(&outcome, "taken");
    assert!(held > 0 && taken > 0, "{held} holds of kazoo, {taken} were taken away: {outcome}");
}
