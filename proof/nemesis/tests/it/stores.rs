//! What the runs at other stores share: the plan, and both judges.

use std::time::Duration;

use latchwork_nemesis::run::{Outcome, Plan};
use latchwork_nemesis::schedule::Schedule;
use latchwork_nemesis::stores::Store;

use crate::eye;

/// What every run must give the eye to examine.
const REQUIRED: &[&str] = &["exclusion", "fence", "token-order", "handed-on", "release", "ghost"];

/// What the eye, too, must excuse where a store loses claims: a holder that has lost its hold, whose
/// claim nobody took away by force.
const OF_LOST_CLAIMS: &[&str] = &["loss-reason", "release", "kept"];

/// The seed of a run's faults: `LATCHWORK_SEED` chooses another one.
fn seed() -> u64 {
    let text = std::env::var("LATCHWORK_SEED").unwrap_or_default();
    text.parse().unwrap_or(1)
}

/// Plays a run in which each fault has its turn, with another one beside it by lot. The checks and
/// the eye judge it; where one of them finds something, the logs stay.
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
    let (fault, calm) = (Duration::from_millis(1_200), Duration::from_millis(800));
    plan.schedule = Schedule { length: fault + calm * 2, fault, calm, together: 2 };
    // The witness sees one thread's delays, and telling takes two of them one after the other.
    plan.bounds.told = Duration::from_millis(250);
    // Nobody measures how long servers stand still that share the machine with other trials.
    (plan.bounds.wake, plan.bounds.slack) = (ttl * 3 / 5, Duration::from_secs(1));
    plan.without.push("no_false_alarm");
    store.arm(&mut plan, faults).unwrap();
    change(&mut plan);
    let words = words(store, &plan, faults);
    let outcome = plan.run(&mut |_| {}).unwrap();
    let struck = |name: &&str| outcome.history.faults.iter().any(|fault| *fault.name == **name);
    let all = faults.iter().all(struck);
    let (accepted, said) = eye::judge(folder.path(), &words);
    if !outcome.passed() || !all || !accepted {
        let kept = folder.keep();
        let words = words.join(" ");
        panic!("{outcome}\nthe eye ({words}): {said}\nlogs in {}", kept.display());
    }
    outcome
}

/// What the eye has to know of the store: the exceptions of the plan, by the eye's own rules.
fn words(store: &dyn Store, plan: &Plan, faults: &[&str]) -> Vec<String> {
    let millis = |length: Duration| format!("{}ms", length.as_millis());
    let mut words = vec!["--ttl".into(), millis(plan.ttl), "--told".into(), millis(plan.told())];
    let kept_for = plan.bounds.ends + plan.bounds.grain.unwrap_or_default();
    words.extend(["--ends".into(), millis(kept_for)]);
    let after = plan.ttl * 2;
    if let Some(foreign) = plan.foreign {
        let name = foreign.name();
        let mut of_its_own = |rules: &[&str], list: &[&str], who: &str| {
            for fault in list.iter().filter(|fault| faults.contains(fault)) {
                for rule in rules {
                    let seconds = after.as_secs_f64();
                    words.extend(["--allow".into(), format!("{rule}:{fault}:{seconds}:{who}")]);
                }
            }
        };
        of_its_own(&["exclusion", "token-order", "kept"], foreign.overstays(), name);
        of_its_own(&["exclusion"], foreign.enters(), &format!("+{name}"));
    }
    let mut allow = |rule: &str, fault: &str, after: Duration| {
        words.extend(["--allow".into(), format!("{rule}:{fault}:{}", after.as_secs_f64())]);
    };
    for fault in faults {
        // Elections and a quarantine keep a key closed for longer than the eye knows.
        allow("handed-on", fault, plan.bounds.settle * 2);
        if store.excused(fault).contains(&"exclusion") {
            // Of two that hold at once, neither is the later one.
            allow("exclusion", fault, after);
            allow("token-order", fault, after);
        }
        let takes = matches!(
            *fault,
            "truncate" | "failover" | "split" | "delete" | "strip" | "leader-stop"
        );
        if takes || *fault == "evict" {
            OF_LOST_CLAIMS.iter().for_each(|rule| allow(rule, fault, after));
        }
    }
    if plan.frozen_clock {
        // The store may have ended the claim of a machine that was paused.
        OF_LOST_CLAIMS.iter().for_each(|rule| allow(rule, "stop", after));
    }
    words.extend(["--without".into(), "calm".into()]);
    let kept = plan.bounds.grain.map(|_| "kept");
    let required = REQUIRED.iter().copied().chain(kept);
    words.extend(required.flat_map(|rule| ["--require".into(), rule.into()]));
    words
}

pub(crate) fn overlaps(outcome: &Outcome) -> u64 {
    outcome.verdict("exclusion").unwrap().exceptions
}

/// How many holds ended with this reason.
pub(crate) fn lost(outcome: &Outcome, why: &str) -> usize {
    let lost = outcome.history.attempts.iter().filter_map(|a| a.hold.as_ref()?.lost.as_ref());
    lost.filter(|(.., reason)| &**reason == why).count()
}
