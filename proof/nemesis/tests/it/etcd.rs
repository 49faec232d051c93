//! Worker processes at three members of etcd that are killed, stopped, silenced, wiped and cut off.

use std::time::Duration;

use latchwork_nemesis::stores::Etcd;

use crate::stores::{overlaps, play, play_strictly};

/// The shortest that etcd grants.
const TTL: Duration = Duration::from_secs(2);

#[test]
fn members_of_etcd_fail_and_no_two_hold() {
    let etcd = Etcd::start("").unwrap();
    let faults = ["leader-kill", "silence", "member-wipe", "all-kill"];
    let outcome = play(&etcd, TTL, &faults, |_| {});
    assert_eq!(overlaps(&outcome), 0, "{outcome}");
}

/// The machines of workers are paused meanwhile, and their boot clocks stand still.
#[test]
fn the_network_of_etcd_fails_and_no_two_hold() {
    let etcd = Etcd::start("").unwrap();
    let faults = ["cuts", "lost-answers", "stop", "partition", "late"];
    let outcome = play(&etcd, TTL, &faults, |plan| plan.frozen_clock = true);
    assert_eq!(overlaps(&outcome), 0, "{outcome}");
}

/// A leader that stood still may end leases, and somebody deletes keys: the holders are notified, and
/// the fence refuses them.
#[test]
fn a_deleted_key_of_etcd_is_reported_to_its_holder() {
    let etcd = Etcd::start("").unwrap();
    let outcome = play(&etcd, TTL, &["delete", "leader-stop", "evict", "slow-members"], |plan| {
        plan.longest = 2.0;
    });
    assert!(outcome.history.lost("taken") > 0, "{outcome}");
}

/// With all rules, also those that a busy machine disturbs where a ttl is short.
#[test]
fn a_killed_worker_of_etcd_is_replaced_in_time() {
    let etcd = Etcd::start("").unwrap();
    play_strictly(&etcd);
}
