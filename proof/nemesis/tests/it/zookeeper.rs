//! Worker processes at three ZooKeeper servers that are killed, stopped, silenced, wiped and cut off.

use std::time::Duration;

use latchwork_nemesis::stores::ZooKeeper;

use crate::stores::{overlaps, play, play_strictly};

const TTL: Duration = Duration::from_millis(1_500);

#[test]
fn members_of_zookeeper_fail_and_no_two_hold() {
    let zookeeper = ZooKeeper::start("").unwrap();
    let faults = ["leader-kill", "silence", "member-wipe"];
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

/// With all rules, also those that a busy machine disturbs where a ttl is short.
#[test]
fn a_killed_worker_of_zookeeper_is_replaced_in_time() {
    let zookeeper = ZooKeeper::start("").unwrap();
    play_strictly(&zookeeper);
}
