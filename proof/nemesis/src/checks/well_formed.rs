//! Each attempt and each process has the shape that `docs/history.md` gives it, and each write is one of a hold.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use latchwork_store::Moment;

use super::{Bounds, Verdict};
use crate::event::{Event, How, What};
use crate::history::History;

/// How far an attempt has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Tried,
    GaveUp,
    Granted,
    Lost,
    Releasing(How),
    Released,
}

/// An attempt: its process, and its number there.
type Id<'a> = (&'a str, u64);

#[derive(Default)]
struct Walk<'a> {
    attempts: HashMap<Id<'a>, (State, &'a Arc<str>)>,
    started: HashSet<&'a str>,
    ended: HashMap<&'a str, Moment>,
}

pub(super) fn look(history: &History, _: &Bounds) -> Verdict {
    let mut verdict = Verdict::default();
    let mut walk = Walk::default();
    for event in &history.events {
        walk.process(&mut verdict, event);
        walk.attempt(&mut verdict, event);
    }
    verdict.checked = walk.attempts.len() as u64;
    for ((process, attempt), (state, key)) in &walk.attempts {
        if let (State::Tried | State::Granted, Some(ended)) = (state, walk.ended.get(process)) {
            let message = format!("{process} ended, and its attempt {attempt} was {state:?}");
            verdict.violation(*ended, key, message);
        }
    }
    writes(&mut verdict, history);
    verdict
}

impl<'a> Walk<'a> {
    fn process(&mut self, verdict: &mut Verdict, event: &'a Event) {
        let process = &*event.process;
        if matches!(process, "run" | "resource") {
            return;
        }
        let is_first = self.started.insert(process);
        if is_first != matches!(event.what, What::Started { .. }) {
            let word = if is_first { "says something before it starts" } else { "starts twice" };
            verdict.violation(event.at, &event.process, format!("{process} {word}"));
        }
        if self.ended.contains_key(process) && !matches!(event.what, What::Stalled { .. }) {
            let message = format!("{process} says something after its end");
            verdict.violation(event.at, &event.process, message);
        }
        if matches!(event.what, What::Ended) {
            self.ended.entry(process).or_insert(event.at);
        }
    }

    fn attempt(&mut self, verdict: &mut Verdict, event: &'a Event) {
        let Some(attempt) = attempt_of(&event.what) else { return };
        let id = (&*event.process, attempt);
        let known = self.attempts.get(&id).copied();
        let key = match (&event.what, known) {
            (What::Try { key, .. }, None) => key,
            (_, Some((_, key))) => key,
            (_, None) => &event.process,
        };
        match next(known.map(|(state, _)| state), &event.what) {
            Some(state) => _ = self.attempts.insert(id, (state, key)),
            None => {
                let state = known.map_or("not tried".to_owned(), |(state, _)| format!("{state:?}"));
                let event_line = event.to_line();
                let message = format!("its attempt was {state}: {}", event_line.trim_end());
                verdict.violation(event.at, key, message);
            }
        }
    }
}

/// The attempt that an event is about, if it is its own process's.
fn attempt_of(what: &What) -> Option<u64> {
    match what {
        What::Try { attempt, .. }
        | What::Blocked { attempt }
        | What::GaveUp { attempt, .. }
        | What::Granted { attempt, .. }
        | What::Held { attempt, .. }
        | What::Suspect { attempt }
        | What::Renewed { attempt, .. }
        | What::Lost { attempt, .. }
        | What::Releasing { attempt, .. }
        | What::Released { attempt, .. }
        | What::Wrote { attempt, .. } => Some(*attempt),
        _ => None,
    }
}

/// How far the attempt is after this; `None` if it cannot come next.
fn next(state: Option<State>, what: &What) -> Option<State> {
    use State::{GaveUp, Granted, Lost, Released, Releasing, Tried};
    match (state, what) {
        (None, What::Try { .. }) | (Some(Tried), What::Blocked { .. }) => Some(Tried),
        (Some(Tried), What::GaveUp { .. }) => Some(GaveUp),
        (Some(Tried), What::Granted { .. }) => Some(Granted),
        // A holder writes once more after a loss. Whether it may be told anything else then,
        // `held_is_valid` judges.
        (
            Some(state @ (Granted | Lost)),
            What::Held { .. } | What::Suspect { .. } | What::Renewed { .. } | What::Wrote { .. },
        ) => Some(state),
        (Some(Granted), What::Lost { .. }) => Some(Lost),
        (Some(Granted), What::Releasing { how, .. }) => Some(Releasing(*how)),
        (Some(Releasing(How::Release)), What::Released { .. }) => Some(Released),
        _ => None,
    }
}

/// Judges what was written: by whom, with which token, and what was answered.
fn writes(verdict: &mut Verdict, history: &History) {
    let holds: HashMap<Id<'_>, _> = history
        .attempts
        .iter()
        .filter_map(|a| Some(((&*a.process, a.id), (&a.key, a.hold.as_ref()?))))
        .collect();
    // What was judged for each attempt and has not been answered yet.
    let mut judged: HashMap<Id<'_>, Vec<(u64, bool)>> = HashMap::new();
    for event in &history.events {
        match &event.what {
            What::Judged { key, by, attempt, token, accepted, .. } => {
                verdict.checked += 1;
                let hold = holds.get(&(&**by, *attempt));
                let is_its = hold.is_some_and(|(of, hold)| {
                    *of == key && hold.token == *token && hold.told <= event.at
                });
                if !is_its {
                    let message =
                        format!("{by} (attempt {attempt}) wrote with {token}, not its own");
                    verdict.violation_of(event.at, key, &[by], message);
                }
                judged.entry((by, *attempt)).or_default().push((*token, *accepted));
            }
            What::Wrote { attempt, token, accepted } => {
                let id = (&*event.process, *attempt);
                let open = judged.entry(id).or_default();
                // An answer to an earlier write may have been lost.
                let answer = open.iter().position(|judged| *judged == (*token, *accepted));
                match answer {
                    Some(place) => _ = open.drain(..=place),
                    None => {
                        let key = holds.get(&id).map_or(&event.process, |(key, _)| *key);
                        let message = format!(
                            "{} (attempt {attempt}) was answered {accepted}, which was not judged",
                            event.process
                        );
                        verdict.violation(event.at, key, message);
                    }
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Answer;
    use crate::story::{Story, TTL, ms};

    fn verdict(story: &Story) -> Verdict {
        look(&story.history(), &Bounds::new(TTL, 2))
    }

    /// A process that has a hold from 10 on, and does not give it up.
    fn holding() -> (Story, u64) {
        let mut story = Story::new();
        story.at(0).says("a", What::Started { pid: 1, seed: 1 });
        let attempt = story.at(5).tries("a", "k", false);
        story.at(10).granted("a", attempt, 1 << 10);
        (story, attempt)
    }

    fn written(story: &mut Story, attempt: u64, token: u64, accepted: [bool; 2]) {
        let (key, by) = ("k".into(), "a".into());
        let judged = What::Judged { order: 1, key, by, attempt, token, accepted: accepted[0] };
        story.at(20).says("resource", judged);
        story.at(21).says("a", What::Wrote { attempt, token, accepted: accepted[1] });
    }

    #[test]
    fn the_check_accepts_a_hold_that_writes_and_is_released() {
        let (mut story, attempt) = holding();
        written(&mut story, attempt, 1 << 10, [true, true]);
        story.at(30).released("a", attempt);
        story.at(40).says("a", What::Ended);
        let verdict = verdict(&story);
        assert!(verdict.passed(), "{verdict:?}");
    }

    #[test]
    fn the_check_finds_what_cannot_come_next() {
        let (attempt, valid_until) = (holding().1, ms(900));
        for what in [
            What::Granted { attempt, token: 1 << 10, ttl: TTL, valid_until },
            What::GaveUp { attempt, why: "busy".into() },
            What::Blocked { attempt },
            What::Released { attempt, answer: Answer::Yes },
        ] {
            let (mut story, _) = holding();
            story.at(20).says("a", what.clone());
            assert_eq!(verdict(&story).violations.len(), 1, "{what:?}");
        }
        let (mut story, attempt) = holding();
        story.at(20).released("a", attempt);
        story.at(30).says("a", What::Held { attempt, valid_until });
        assert_eq!(verdict(&story).violations.len(), 1, "held after its release");
        let (mut story, _) = holding();
        story.at(20).says("a", What::Suspect { attempt: 99 });
        assert_eq!(verdict(&story).violations.len(), 1, "not tried");
    }

    #[test]
    fn the_check_finds_an_end_with_a_hold_and_words_after_it() {
        let (mut story, attempt) = holding();
        story.at(20).says("a", What::Ended);
        assert_eq!(verdict(&story).violations.len(), 1);
        story.at(30).released("a", attempt);
        assert_eq!(verdict(&story).violations.len(), 2, "two lines after the end");
    }

    #[test]
    fn the_check_finds_writes_that_are_nobodys_and_answers_that_are_none() {
        for (token, accepted) in [(2 << 10, [true, true]), (1 << 10, [true, false])] {
            let (mut story, attempt) = holding();
            written(&mut story, attempt, token, accepted);
            assert_eq!(verdict(&story).violations.len(), 1, "{token} {accepted:?}");
        }
        let (mut story, attempt) = holding();
        story.at(20).says("a", What::Wrote { attempt, token: 1 << 10, accepted: true });
        assert_eq!(verdict(&story).violations.len(), 1, "nobody judged it");
    }
}
