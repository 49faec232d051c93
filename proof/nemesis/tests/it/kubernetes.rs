//! Worker processes at a kube-apiserver that is stopped.

use std::time::Duration;

use latchwork_nemesis::schedule::Schedule;
use latchwork_nemesis::stores::Kubernetes;

use crate::stores::{overlaps, play, play_strictly};

/// A busy machine lets a server answer within a quarter of it.
const TTL: Duration = Duration::from_secs(2);

/// All kinds of locks, and somebody who edits their Leases meanwhile.
#[test]
fn servers_of_kubernetes_fail_and_no_two_hold() {
    let kubernetes = Kubernetes::start("").unwrap();
    let outcome = play(&kubernetes, TTL, &["freeze", "touch"], |plan| {
        // Holds end meanwhile.
        let (fault, calm) = (TTL * 5 / 4, TTL / 4);
        plan.schedule = Schedule { length: fault + calm * 2, fault, calm, together: 2 };
        // No key is waited for that long.
        plan.bounds.without.push("unfairness");
    });
    assert_eq!(overlaps(&outcome), 0, "{outcome}");
}

/// With all rules, also those that a busy machine disturbs where a ttl is short.
#[test]
fn a_killed_worker_of_kubernetes_is_replaced_in_time() {
    let kubernetes = Kubernetes::start("").unwrap();
    play_strictly(&kubernetes);
}
