//! Each planted bug is found, and the plan that shows it is made small.

use latchwork_simulate::{Planted, run, search, shrink, story};

/// Each has to be found within so many seeds.
const SEEDS: u64 = 10_000;

#[test]
fn each_planted_bug_is_found_within_ten_thousand_seeds() {
    assert_eq!(Planted::ALL.len(), 20);
    for bug in Planted::ALL {
        let found = search(0..SEEDS, Some(*bug));
        assert!(found.is_some(), "no seed of {SEEDS} shows `{}`", bug.name());
    }
}

#[test]
fn a_failing_plan_shrinks_to_what_shows_the_bug() {
    let bug = Some(Planted::NoQuarantine);
    let found = search(0..SEEDS, bug).expect("a seed that shows it");
    let (rule, before) = (found.violation.rule, found.plan.size());
    let small = shrink(found, bug);
    assert_eq!(small.violation.rule, rule);
    assert_eq!(run(&small.plan, bug).violation, Some(small.violation.clone()));
    // A hold, a server that forgets it, and another acquire.
    assert!(small.plan.size() <= 4, "{} parts of {before} are left", small.plan.size());
    assert_eq!(run(&small.plan, None).violation, None, "without the bug all is well");
}

#[test]
fn a_story_tells_the_seed_the_faults_and_the_broken_rule() {
    let bug = Some(Planted::NoQuarantine);
    let small = shrink(search(0..SEEDS, bug).expect("a seed that shows it"), bug);
    let story = story(&small.plan, bug);
    assert!(story.contains(&format!("seed {}", small.plan.seed)), "{story}");
    assert!(story.contains("fault: Forget"), "{story}");
    assert!(story.contains("both believe"), "{story}");
}
