//! Visits the states of a model, with progress, and tells what was found.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use stateright::{Checker, Expectation, HasDiscoveries, Model};

use crate::action::Action;
use crate::rules::Quorum;
use crate::state::State;

/// How a search is made.
#[derive(Debug, Clone)]
pub struct Search {
    /// Nearest states first: a violation is told by a shortest way. That takes much more memory than
    /// the other order, and more than one thread may not keep to it.
    pub nearest_first: bool,
    /// How many threads visit states.
    pub threads: usize,
    /// Stops after so many steps to new or known states.
    pub limit: usize,
}

/// How far a search has come.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// How many different states were found.
    pub unique: usize,
    /// How long it has taken.
    pub took: Duration,
}

/// What a search has found.
#[derive(Debug, Clone)]
pub struct Found {
    /// How far it came.
    pub progress: Progress,
    /// Whether all states were visited.
    pub complete: bool,
    /// The property that is violated, and the steps that lead there.
    pub violation: Option<(&'static str, Vec<Action>)>,
    /// What should happen sometimes and was never seen.
    pub unseen: Vec<&'static str>,
}

impl Search {
    /// Visits all states, unless a property is violated or the limit is reached first.
    pub fn run(&self, quorum: &Quorum, mut report: impl FnMut(Progress)) -> Found {
        let mut found = self.look(quorum, usize::MAX, &mut report);
        // The checker goes on for a while after the first violation, and tells the last one.
        while let (true, Some((_, steps))) = (self.nearest_first, &found.violation) {
            let shorter = self.look(quorum, steps.len(), &mut report).violation;
            if shorter.is_none() {
                break;
            }
            found.violation = shorter;
        }
        found
    }

    /// Visits the states that fewer steps than `end` lead to.
    fn look(&self, quorum: &Quorum, end: usize, report: &mut impl FnMut(Progress)) -> Found {
        let builder = quorum.clone().checker().threads(self.threads);
        let builder = builder.finish_when(HasDiscoveries::AnyFailures);
        // The checker counts states, one more than steps, and leaves out those at its depth.
        let builder = builder.target_max_depth(end.saturating_add(1));
        let builder = builder.target_state_count(self.limit);
        if self.nearest_first {
            self.watch(builder.spawn_bfs(), report)
        } else {
            self.watch(builder.spawn_dfs(), report)
        }
    }

    #[expect(clippy::disallowed_methods, reason = "a search takes real time")]
    fn watch(&self, mut checker: impl Checker<Quorum>, mut report: impl FnMut(Progress)) -> Found {
        let start = Instant::now();
        let threads = checker.handles();
        let mut reported = start.elapsed();
        while threads.iter().any(|thread| !thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(5));
            if start.elapsed() > reported + Duration::from_secs(2) {
                reported = start.elapsed();
                report(progress(&checker, reported));
            }
        }
        for thread in threads {
            thread.join().expect("a thread of the checker panicked");
        }
        let progress = progress(&checker, start.elapsed());
        let quorum = checker.model();
        let mut found: BTreeMap<&str, _> = checker.discoveries().into_iter().collect();
        let mut violation = None;
        let mut unseen = Vec::new();
        for property in quorum.properties() {
            match (property.expectation, found.remove(property.name)) {
                (Expectation::Always, Some(path)) => {
                    violation = Some((property.name, story_of(quorum, path.into_vec())));
                }
                (Expectation::Sometimes, None) => unseen.push(property.name),
                _ => {}
            }
        }
        let complete = violation.is_none() && checker.state_count() < self.limit;
        Found { progress, complete, violation, unseen }
    }
}

fn progress(checker: &impl Checker<Quorum>, took: Duration) -> Progress {
    Progress { unique: checker.unique_state_count(), took }
}

/// The same way with nodes that keep their names: the checker sorts them after each step.
fn story_of(quorum: &Quorum, sorted: Vec<(State, Option<Action>)>) -> Vec<Action> {
    let mut state = quorum.first();
    let mut story = Vec::new();
    for pair in sorted.windows(2) {
        let (next, _) = &pair[1];
        let step = quorum.steps(&state).into_iter().find_map(|action| {
            let after = quorum.step(&state, action)?;
            let mut twin = after.clone();
            twin.sort_nodes();
            (twin == *next).then_some((action, after))
        });
        let (action, after) = step.expect("what happens to a sorted state happens to its twin");
        story.push(action);
        state = after;
    }
    story
}
