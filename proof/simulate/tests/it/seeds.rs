//! Seeds pass, and a run can be repeated.

use std::collections::HashSet;
use std::mem::discriminant;
use std::time::Duration;

use latchwork_simulate::{Fault, FaultKind, Plan, run, search, shrink, story};

const SEEDS: u64 = 1_000;

#[test]
fn no_seed_of_a_thousand_breaks_a_rule() {
    if let Some(found) = search(0..SEEDS, None) {
        let small = shrink(found, None);
        panic!("{}\n{:#?}", story(&small.plan, None), small.plan);
    }
}

#[test]
fn the_same_plan_takes_the_same_course() {
    for seed in 0..100 {
        let plan = Plan::draw(seed);
        let (one, two) = (run(&plan, None), run(&plan, None));
        assert_eq!(one.log, two.log, "seed {seed}");
        assert_eq!(one, two, "seed {seed}");
    }
}

#[test]
fn seeds_draw_every_fault_and_calm_runs() {
    let plans: Vec<_> = (0..SEEDS).map(Plan::draw).collect();
    let faults = plans.iter().flat_map(|plan| &plan.faults).map(|it| discriminant(&it.kind));
    let all: HashSet<_> = faults.collect();
    let (machine, server) = (0, 0);
    for kind in [
        FaultKind::Stop { machine },
        FaultKind::Pause { machine },
        FaultKind::Kill { machine },
        FaultKind::Cut { machine, server },
        FaultKind::Freeze { server },
        FaultKind::Restart { server },
        FaultKind::Forget { server },
    ] {
        assert!(all.contains(&discriminant(&kind)), "{kind:?}");
    }
    let calm = plans.iter().filter(|plan| plan.is_calm()).count();
    assert!((100..500).contains(&calm), "{calm} calm runs");
}

/// Each begins a process when it is over, and the second one ends what the first one has begun.
#[test]
fn kills_that_overlap_leave_one_process() {
    let kill = |at, length| {
        let [at, length] = [at, length].map(Duration::from_millis);
        Fault { at, length, kind: FaultKind::Kill { machine: 1 } }
    };
    for seed in 0..100 {
        let mut plan = Plan::draw(seed);
        plan.faults = vec![kill(1_900, 6_400), kill(7_600, 750)];
        let outcome = run(&plan, None);
        assert_eq!(outcome.violation, None, "{}", story(&plan, None));
    }
}
