//! What the runs at other stores share: the plan, and the judge.

use std::io;
use std::time::Duration;

use latchwork_nemesis::run::{Outcome, Plan};
use latchwork_nemesis::schedule::Schedule;
use latchwork_nemesis::stores::Store;
use tempfile::TempDir;

use crate::eye;

/// The seed of a run's faults: `LATCHWORK_SEED` chooses another one.
fn seed() -> u64 {
    let text = std::env::var("LATCHWORK_SEED").unwrap_or_default();
    text.parse().unwrap_or(1)
}

/// Plays a run in which each fault has its turn, with another one beside it by lot. Where the
/// eye finds something, the logs stay.
pub(crate) fn play(
    store: &dyn Store,
    ttl: Duration,
    faults: &[&str],
    change: impl FnOnce(&mut Plan),
) -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_latchwork-nemesis").into();
    let mut plan = Plan::new(&store.url(), program, folder.path().into());
    // The servers have enough to do.
    (plan.processes, plan.tasks, plan.longest) = (2, 14, 1.2);
    plan.seed = seed();
    let mut plan = plan.ttl(ttl);
    // What waits is judged in the calm only, and servers that have just begun are slow.
    let (fault, calm) = (Duration::from_millis(1_200), Duration::from_secs(1));
    plan.schedule = Schedule { length: fault + calm * 2, fault, calm, together: 2 };
    // The witness sees one thread's delays, and telling takes two of them one after the other.
    plan.bounds.told = Duration::from_millis(250);
    // Nobody measures how long servers stand still that share the machine with other trials.
    (plan.bounds.wake, plan.bounds.slack) = (ttl * 3 / 5, Duration::from_secs(1));
    plan.bounds.without.push("calm");
    store.arm(&mut plan, faults).unwrap();
    change(&mut plan);
    let outcome = plan.run(&mut |_| {});
    accept(store, folder, outcome, faults)
}

/// Plays a run in which workers are killed and nothing else happens, with a ttl that the stalls of a busy machine do
/// not use up: all rules judge it, by their usual bounds.
pub(crate) fn play_strictly(store: &dyn Store) -> Outcome {
    const TTL: Duration = Duration::from_secs(4);
    let folder = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_latchwork-nemesis").into();
    let mut plan = Plan::new(&store.url(), program, folder.path().into());
    // Most wait, and holds are short: a killed worker is likely to hold something that others want.
    (plan.processes, plan.tasks, plan.longest) = (2, 14, 0.6);
    plan.seed = seed();
    let mut plan = plan.ttl(TTL);
    plan.bounds.told = Duration::from_millis(250);
    // Nobody measures the stalls of servers. A message that is missed costs a waiter a third of the ttl, which is more.
    plan.bounds.slack = Duration::from_secs(1);
    // The key of a killed worker has the time to pass on, and a little more to be late in.
    let (calm, fault) = (Duration::from_secs(2), Duration::from_millis(300));
    let length = calm + fault + plan.bounds.takeover + Duration::from_millis(500);
    plan.schedule = Schedule { length, fault, calm, together: 1 };
    store.arm(&mut plan, &["kill"]).unwrap();
    let outcome = plan.run(&mut |_| {});
    let outcome = accept(store, folder, outcome, &["kill"]);
    for rule in ["calm", "takeover"] {
        assert!(outcome.verdict(rule).unwrap().examined > 0, "{rule}: {outcome}");
    }
    outcome
}

/// Expects that each fault has happened, and that the eye accepts the run and refuses the lies that are told about it. Otherwise the logs stay, also those of the servers.
pub(crate) fn accept(
    store: &dyn Store,
    folder: TempDir,
    outcome: io::Result<Outcome>,
    faults: &[&str],
) -> Outcome {
    let said = match &outcome {
        Err(error) => Some(error.to_string()),
        Ok(outcome) => {
            let struck = |name: &&str| outcome.history.faults.iter().any(|fault| **fault == **name);
            let missing: Vec<_> = faults.iter().filter(|name| !struck(name)).collect();
            match outcome.passed() && missing.is_empty() {
                true => eye::lie_about(outcome).err(),
                false => Some(format!("{outcome}never struck: {missing:?}")),
            }
        }
    };
    if let Some(said) = said {
        let kept = folder.keep();
        let logs = store.keep_logs(&kept);
        panic!("{said}\nlogs in {}, servers: {logs:?}", kept.display());
    }
    outcome.unwrap()
}

pub(crate) fn overlaps(outcome: &Outcome) -> u64 {
    outcome.verdict("exclusion").unwrap().excused
}
