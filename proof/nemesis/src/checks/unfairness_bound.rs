//! Handover inside processes keeps another process waiting only so long: with `k` processes, at
//! most `k - 1` times a slice and the longest hold.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use latchwork_store::{Mode, Moment};

use super::{Bounds, Verdict};
use crate::event::What;
use crate::history::{Attempt, History, Span};

pub(super) fn look(history: &History, bounds: &Bounds) -> Verdict {
    let mut verdict = Verdict::default();
    if !bounds.queues {
        return verdict;
    }
    let longest = longest_holds(history);
    // Since when the line of a process waits at the store for a key.
    let mut since: HashMap<(Arc<str>, Arc<str>), Moment> = HashMap::new();
    let plain: HashMap<(&str, u64), &Arc<str>> = history
        .attempts
        .iter()
        .filter(|attempt| is_judged(attempt))
        .map(|attempt| ((&*attempt.process, attempt.id), &attempt.key))
        .collect();
    for event in &history.events {
        let process = &event.process;
        let key = |attempt: &u64| plain.get(&(&**process, *attempt)).map(|key| (*key).clone());
        match &event.what {
            What::Waiting { key } => {
                since.entry((process.clone(), key.clone())).or_insert(event.at);
            }
            What::GaveUp { attempt, .. } => {
                // The place may have been given up with it.
                if let Some(key) = key(attempt) {
                    since.remove(&(process.clone(), key));
                }
            }
            What::Granted { attempt, .. } => {
                let Some(key) = key(attempt) else { continue };
                let Some(from) = since.remove(&(process.clone(), key.clone())) else { continue };
                let span = Span { from, to: event.at };
                if history.disturbed(span, bounds.settle) {
                    continue;
                }
                verdict.checked += 1;
                let hold = longest.get(&key).copied().unwrap_or_default();
                let most =
                    (bounds.slice + hold + bounds.travel) * bounds.processes.saturating_sub(1);
                let most = most + bounds.travel + bounds.slack;
                let waited = span.to.since(span.from);
                if waited > most && waited - history.all_stalled(span).min(waited) > most {
                    let message = format!("{process} waited {waited:?}, more than {most:?}");
                    verdict.violation(event.at, &key, message);
                }
            }
            _ => {}
        }
    }
    verdict
}

/// Whether it waits in the line of its process, and for its own key alone.
fn is_judged(attempt: &Attempt) -> bool {
    !attempt.fair && !attempt.several && attempt.mode == Mode::Exclusive
}

/// The longest hold of each key, from when its holder was told until its end was answered.
fn longest_holds(history: &History) -> HashMap<Arc<str>, Duration> {
    let mut longest: HashMap<Arc<str>, Duration> = HashMap::new();
    for attempt in history.attempts.iter().filter(|attempt| !attempt.fair) {
        let Some(hold) = &attempt.hold else { continue };
        let given_up = hold.released.map(|(at, _)| at).or(hold.releasing.map(|(at, _)| at));
        let end = given_up.or(attempt.believed_until()).unwrap_or(hold.valid_until);
        let known = longest.entry(attempt.key.clone()).or_default();
        *known = (*known).max(end.since(hold.told));
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::{Story, TTL};

    /// `a` hands over to itself from 0 on, 5 ms each, while `b` waits until `admitted`.
    fn story(admitted: u64) -> Verdict {
        let mut story = Story::new();
        let b = story.at(2).tries("b", "k", false);
        story.at(3).says("b", What::Waiting { key: "k".into() });
        for n in 0..admitted / 5 {
            story.hold("a", "k", 1, n * 5, n * 5 + 4);
        }
        story.at(admitted).granted("b", b, 2 << 10);
        story.at(admitted + 3).released("b", b);
        look(&story.history(), &Bounds::new(TTL, 2))
    }

    #[test]
    fn the_check_accepts_a_slice_and_a_hold() {
        assert!(story(20).passed());
    }

    #[test]
    fn the_check_finds_an_unfair_process() {
        assert_eq!(story(500).violations.len(), 1);
    }
}
