//! Tells a run, for people.

use std::fmt::Write as _;

use crate::plan::Plan;
use crate::planted::Planted;
use crate::world::run;

/// Tells what happened in the run of a plan.
pub fn story(plan: &Plan, planted: Option<Planted>) -> String {
    let outcome = run(plan, planted);
    let mut text = format!(
        "seed {}: {:?}, ttl {:?}, clocks of servers {:?} and machines {:?} millionths fast,\n\
         {} of 1,000 messages lost, {} late\n",
        plan.seed,
        plan.store,
        plan.ttl,
        plan.server_rates,
        plan.machine_rates,
        plan.losses,
        plan.delays
    );
    for (number, (machine, ops)) in plan.tasks.iter().enumerate() {
        if !ops.is_empty() {
            let _ = writeln!(text, "task {number} is on machine {machine}");
        }
    }
    for (at, what) in &outcome.log {
        let _ = writeln!(text, "{:>10.3} s  {what}", at.as_secs_f64());
    }
    match &outcome.violation {
        Some(violation) => {
            let _ = writeln!(text, "broken: {}: {}", violation.rule, violation.what);
        }
        None => text.push_str("no rule is broken\n"),
    }
    text
}
