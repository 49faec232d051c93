//! A later hold has a larger token, and no token is used twice.
//!
//! A hold that was handed over inside a process shares the store's number with the hold that it
//! came from, and that number belongs to one process. A hold of a claim that was granted before the
//! other one had ended is judged by `forgotten_claim` instead.

use std::collections::HashMap;
use std::sync::Arc;

use latchwork::FencingToken;
use latchwork_store::validity::drift;
use latchwork_store::{Mode, Moment};

use super::{Bounds, Verdict};
use crate::history::{Attempt, History, Hold};

/// How the names of Latchwork's own workers begin.
const WORKER: &str = "w";

pub(super) fn look(history: &History, bounds: &Bounds) -> Verdict {
    let mut verdict = Verdict::default();
    for (key, holds) in history.holds_by_key() {
        order(&mut verdict, &key, &holds, Granted::Later, &|_| false);
        let mut used: HashMap<u64, &Attempt> = HashMap::new();
        let mut owners: HashMap<u64, &Attempt> = HashMap::new();
        for (attempt, hold) in &holds {
            if hold.number().is_none() {
                // A client of another kind may have none.
                if attempt.process.starts_with(WORKER) {
                    let message =
                        format!("{} (attempt {}) has no token", attempt.process, attempt.id);
                    verdict.violation(hold.told, &key, message);
                }
                continue;
            }
            let number = FencingToken::from_raw(hold.token).grant_number();
            let owner = *owners.entry(number).or_insert(attempt);
            if let Some(other) = used.insert(hold.token, attempt) {
                // Each of two servers may give the number to another reader in the same microsecond.
                if bounds.votes && [other, attempt].iter().all(|one| one.mode == Mode::Read) {
                    verdict.exceptions += 1;
                    continue;
                }
                let message = format!(
                    "token {} was given to {} (attempt {}) and to {} (attempt {})",
                    hold.token, other.process, other.id, attempt.process, attempt.id
                );
                verdict.violation(hold.told, &key, message);
            } else if owner.process != attempt.process {
                let message = format!(
                    "token {} of {} lies within the hold of {}",
                    hold.token, attempt.process, owner.process
                );
                verdict.violation(hold.told, &key, message);
            }
        }
    }
    verdict
}

/// When the store granted it, at the earliest.
fn began((attempt, hold): &(&Attempt, &Hold)) -> Moment {
    match attempt.mode {
        // One of several may have been granted long before its holder was told of all.
        _ if attempt.several => attempt.tried,
        // Its holder was told after all that it excludes had ended.
        Mode::Exclusive | Mode::Write => hold.told,
        Mode::Read | Mode::Permits { .. } => attempt.tried,
    }
}

/// When the store granted the claim of a hold, compared with the end of an earlier hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Granted {
    Later,
    Before,
}

/// The earliest moment at which the store can have granted each claim, by its number: to one that
/// waited for it, who may have asked again much later. What was handed over is counted from before its try.
fn earliest_grants(holds: &[(&Attempt, &Hold)]) -> HashMap<u64, Moment> {
    let mut grants = HashMap::new();
    for (attempt, hold) in holds {
        let counted = hold.ttl.saturating_sub(drift(hold.ttl));
        let since = hold.first_valid_until.minus(counted).min(attempt.tried);
        let number = FencingToken::from_raw(hold.token).grant_number();
        let known = grants.entry(number).or_insert(since);
        *known = since.min(*known);
    }
    grants
}

/// Judges the holds whose claims were granted `which`, but those that are excused.
pub(super) fn order(
    verdict: &mut Verdict,
    key: &Arc<str>,
    holds: &[(&Attempt, &Hold)],
    which: Granted,
    is_excused: &dyn Fn(&Attempt) -> bool,
) {
    let grants = earliest_grants(holds);
    let numbered = || holds.iter().filter(|(_, hold)| hold.number().is_some());
    let mut by_begin: Vec<_> = numbered().collect();
    by_begin.sort_by_key(|hold| began(hold));
    let mut by_end: Vec<_> =
        numbered().map(|(a, h)| (a.believed_until().unwrap_or(h.told), *a, *h)).collect();
    by_end.sort_by_key(|(end, ..)| *end);
    let mut ended = by_end.into_iter().peekable();
    let mut largest: Option<(Moment, &Attempt, &Hold)> = None;
    for next in by_begin {
        while let Some((end, attempt, hold)) = ended.next_if(|(end, ..)| *end <= began(next)) {
            // A hold that was over before its holder was told of it can end at its own beginning.
            if largest.is_none_or(|(_, _, l)| l.token < hold.token) && !std::ptr::eq(hold, next.1) {
                largest = Some((end, attempt, hold));
            }
        }
        let Some((end, before, last)) = largest else { continue };
        let number = FencingToken::from_raw(next.1.token).grant_number();
        let granted = match grants.get(&number).is_some_and(|since| *since < end) {
            true => Granted::Before,
            false => Granted::Later,
        };
        if granted != which {
            continue;
        }
        verdict.checked += 1;
        if next.1.token < last.token && is_excused(next.0) {
            verdict.exceptions += 1;
        } else if next.1.token < last.token {
            let message = format!(
                "{} (attempt {}) got token {} after {} (attempt {}) had {}",
                next.0.process, next.0.id, next.1.token, before.process, before.id, last.token
            );
            let who = [&next.0.process, &before.process];
            verdict.violation_of(next.1.told, key, &who, message);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::story::{Story, TTL};

    fn verdict(story: &Story) -> Verdict {
        look(&story.history(), &Bounds::new(TTL, 2))
    }

    fn hold(story: &mut Story, process: &str, token: u64, from: u64) {
        let attempt = story.at(from).tries(process, "k", false);
        story.granted(process, attempt, token);
        story.at(from + 5).released(process, attempt);
    }

    #[test]
    fn the_check_accepts_growing_tokens() {
        let mut story = Story::new();
        for (n, (process, token)) in
            [("a", 1 << 10), ("a", (1 << 10) + 1), ("b", 5 << 10), ("a", 6 << 10)]
                .into_iter()
                .enumerate()
        {
            hold(&mut story, process, token, n as u64 * 10);
        }
        let verdict = verdict(&story);
        assert!(verdict.passed(), "{verdict:?}");
        // The handover is of a claim that is older than the end of the hold before it.
        assert_eq!(verdict.checked, 2);
    }

    #[test]
    fn the_check_finds_a_falling_token() {
        let mut story = Story::new();
        hold(&mut story, "a", 9 << 10, 0);
        hold(&mut story, "b", 8 << 10, 10);
        assert_eq!(verdict(&story).violations.len(), 1);
    }

    /// Clients of some other kinds have no number.
    #[test]
    fn holds_without_a_number_have_no_order() {
        let mut story = Story::new();
        let holds = [("a", 9 << 10), ("redsync", 0), ("redsync", 0), ("a", 8 << 10)];
        for (n, (process, token)) in holds.into_iter().enumerate() {
            hold(&mut story, process, token, n as u64 * 10);
        }
        assert_eq!(verdict(&story).violations.len(), 1, "only the falling one");
    }

    #[test]
    fn the_check_finds_a_worker_without_a_number() {
        let mut story = Story::new();
        hold(&mut story, "redsync1.0", 0, 0);
        hold(&mut story, "w0.0", 0, 10);
        assert_eq!(verdict(&story).violations.len(), 1);
    }

    #[test]
    fn the_check_finds_a_repeated_token() {
        let mut story = Story::new();
        hold(&mut story, "a", 9 << 10, 0);
        hold(&mut story, "a", 9 << 10, 10);
        assert_eq!(verdict(&story).violations.len(), 1);
    }

    #[test]
    fn readers_of_a_majority_may_share_a_token_and_writers_may_not() {
        for (mode, violations) in [(Mode::Read, 0), (Mode::Write, 1)] {
            let mut story = Story::new();
            for process in ["a", "b"] {
                let attempt = story.at(0).tries_as(process, "k", false, mode);
                story.granted(process, attempt, 9 << 10);
                story.at(5).released(process, attempt);
            }
            let bounds = Bounds { votes: true, ..Bounds::new(TTL, 2) };
            assert_eq!(look(&story.history(), &bounds).violations.len(), violations, "{mode:?}");
            assert!(!look(&story.history(), &Bounds::new(TTL, 2)).passed());
        }
    }

    #[test]
    fn the_check_finds_a_handover_across_processes() {
        let mut story = Story::new();
        hold(&mut story, "a", 9 << 10, 0);
        hold(&mut story, "b", (9 << 10) + 1, 10);
        assert_eq!(verdict(&story).violations.len(), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// Any two tokens of an otherwise good history that change places are found.
        #[test]
        fn the_check_finds_swapped_tokens(length in 2usize..30, a in 0usize..30, b in 0usize..30) {
            let (a, b) = (a % length, b % length);
            let mut tokens: Vec<u64> = (1..=length as u64).map(|n| n << 10).collect();
            tokens.swap(a, b);
            let mut story = Story::new();
            for (n, token) in tokens.iter().enumerate() {
                hold(&mut story, if n % 3 == 0 { "a" } else { "b" }, *token, n as u64 * 10);
            }
            prop_assert_eq!(verdict(&story).violations.is_empty(), a == b);
        }
    }
}
