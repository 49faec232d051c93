//! Clients of other kinds on the same keys: whoever holds one keeps everybody else out, of its own
//! kind and of the other. What a client does not promise may happen to it alone.

use std::time::Duration;

use latchwork_nemesis::foreign::Foreign;
use latchwork_nemesis::redis::{Kind, Servers};
use latchwork_nemesis::run::{Outcome, Plan};
use latchwork_nemesis::stores::{Etcd, Store, ZooKeeper};

use crate::stores::{overlaps, play};

/// Plays a run with one process of this client, which must hold keys before a worker does and after
/// one does.
fn contest(
    store: &dyn Store,
    ttl: Duration,
    name: &str,
    faults: &[&str],
    change: impl FnOnce(&mut Plan),
) -> Outcome {
    let outcome = play(store, ttl, faults, |plan| {
        plan.foreign = Some(Foreign::named(name, &store.url()).unwrap());
        plan.longest = 2.0;
        change(plan);
    });
    let [mut taken, mut given] = [0, 0];
    for holders in outcome.history.holders().values() {
        for pair in holders.windows(2) {
            let [before, after] = [pair[0], pair[1]].map(|process| process.starts_with(name));
            taken += usize::from(!before && after);
            given += usize::from(before && !after);
        }
    }
    println!("{name} took keys {taken} times and gave them {given} times: {outcome}");
    assert!(taken > 2 && given > 2, "{taken} taken, {given} given: {outcome}");
    outcome
}

/// Fewer tasks: where many wait, a key is handed on and never free.
fn few_tasks(plan: &mut Plan) {
    (plan.tasks, plan.keys) = (5, 2);
}

#[test]
fn kazoo_and_workers_never_hold_together() {
    let zookeeper = ZooKeeper::start("").unwrap();
    let faults = ["kill", "cuts", "delete", "leader-kill"];
    let outcome = contest(&zookeeper, Duration::from_millis(1_500), "kazoo", &faults, |_| {});
    let taken = outcome.history.lost("taken");
    assert!(taken > 0, "{taken} were taken away: {outcome}");
}

#[test]
fn curator_and_workers_never_hold_together() {
    let zookeeper = ZooKeeper::start("").unwrap();
    let faults = ["kill", "partition"];
    contest(&zookeeper, Duration::from_millis(1_500), "curator", &faults, |plan| {
        // A Java machine that has just started is slow.
        plan.schedule.calm *= 2;
        plan.schedule.length += plan.schedule.calm;
    });
}

#[test]
fn go_concurrency_and_workers_never_hold_together() {
    let etcd = Etcd::start("").unwrap();
    let faults = ["kill", "delete"];
    contest(&etcd, Duration::from_secs(2), "go-concurrency", &faults, |_| {});
}

#[test]
fn redis_py_and_workers_never_hold_together() {
    let redis = Servers::start(Kind::Single, "").unwrap();
    let faults = ["kill", "stop", "lost-answers"];
    let outcome = contest(&redis, Duration::from_secs(1), "redis-py", &faults, few_tasks);
    assert_eq!(overlaps(&outcome), 0, "{outcome}");
}

#[test]
fn redsync_and_workers_never_hold_together() {
    let redis = Servers::start(Kind::Single, "").unwrap();
    let faults = ["stop", "restart"];
    let outcome = contest(&redis, Duration::from_secs(1), "redsync", &faults, few_tasks);
    assert_eq!(overlaps(&outcome), 0, "{outcome}");
}

/// Each asks all five servers, and needs three of them.
#[test]
fn redsync_and_workers_share_a_majority() {
    let redlock = Servers::start(Kind::Redlock, "max_ttl=1s").unwrap();
    let faults = ["partition", "freeze-most"];
    let outcome = contest(&redlock, Duration::from_secs(1), "redsync", &faults, few_tasks);
    assert_eq!(overlaps(&outcome), 0, "{outcome}");
}
