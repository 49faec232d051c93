//! Looks through seeds for a broken rule, and makes the plan that breaks it small.

use crate::judge::Violation;
use crate::plan::Plan;
use crate::planted::Planted;
use crate::world::run;

/// A plan that breaks a rule.
#[derive(Debug, Clone)]
pub struct Found {
    /// The plan.
    pub plan: Plan,
    /// The rule, and how it was broken.
    pub violation: Violation,
    /// How many seeds were tried, with this one.
    pub tried: u64,
}

/// Runs the plans of these seeds until one breaks a rule.
pub fn search(seeds: impl IntoIterator<Item = u64>, planted: Option<Planted>) -> Option<Found> {
    for (tried, seed) in (1..).zip(seeds) {
        let plan = Plan::draw(seed);
        if let Some(violation) = run(&plan, planted).violation {
            return Some(Found { plan, violation, tried });
        }
    }
    None
}

/// Leaves out of a plan what is not needed to break the same rule.
pub fn shrink(found: Found, planted: Option<Planted>) -> Found {
    let Found { mut plan, mut violation, tried } = found;
    loop {
        let before = plan.size();
        for smaller in without_one(&plan) {
            // A plan from which parts were taken before has other numbers: what is left out is
            // looked for again.
            if smaller.size() >= plan.size() {
                continue;
            }
            let outcome = run(&smaller, planted);
            if let Some(now) = outcome.violation.filter(|it| it.rule == violation.rule) {
                (plan, violation) = (smaller, now);
                break;
            }
        }
        if plan.size() == before {
            return Found { plan, violation, tried };
        }
    }
}

/// The plans that lack one part: large parts first.
fn without_one(plan: &Plan) -> Vec<Plan> {
    let mut smaller = Vec::new();
    let changed = |change: &dyn Fn(&mut Plan)| {
        let mut plan = plan.clone();
        change(&mut plan);
        plan
    };
    for task in 0..plan.tasks.len() {
        smaller.push(changed(&|it| it.tasks[task].1.clear()));
    }
    for fault in 0..plan.faults.len() {
        smaller.push(changed(&|it| {
            it.faults.remove(fault);
        }));
    }
    for task in 0..plan.tasks.len() {
        for op in 0..plan.tasks[task].1.len() {
            smaller.push(changed(&|it| {
                it.tasks[task].1.remove(op);
            }));
        }
    }
    smaller
}
