//! The resource never accepts a smaller token after a larger one, nor a write of an earlier hold
//! after one of a later hold. Must hold always, also where exclusion may not.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Bounds, Verdict};
use crate::event::What;
use crate::history::History;

#[derive(Default)]
struct Seen {
    largest: u64,
    /// The latest hold that wrote: when its holder was told, and who.
    latest: Option<(latchwork_store::Moment, Arc<str>, u64)>,
}

pub(super) fn look(history: &History, _: &Bounds) -> Verdict {
    let mut verdict = Verdict::default();
    let told: HashMap<(&str, u64), _> = history
        .attempts
        .iter()
        // Holds that share the key have no order among themselves; one of several locks is granted
        // before its holder is told of all.
        .filter(|attempt| attempt.excludes_all() && !attempt.several)
        .filter_map(|a| Some(((&*a.process, a.id), (a.hold.as_ref()?.told, a.believed_until()?))))
        .collect();
    let mut judged: Vec<_> = history
        .events
        .iter()
        .filter_map(|event| match &event.what {
            What::Judged { order, key, by, attempt, token, accepted } => {
                Some((*order, event.at, key, by, *attempt, *token, *accepted))
            }
            _ => None,
        })
        .collect();
    judged.sort_by_key(|judged| judged.0);
    for pair in judged.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
        let message = format!("the resource has judged two writes as number {}", pair[1].0);
        verdict.violation(pair[1].1, pair[1].2, message);
    }
    let mut keys: HashMap<&Arc<str>, Seen> = HashMap::new();
    for (_, at, key, by, attempt, token, accepted) in judged {
        verdict.checked += 1;
        let seen = keys.entry(key).or_default();
        if accepted != (token >= seen.largest) {
            let word = if accepted { "accepted" } else { "refused" };
            let message = format!("token {token} of {by} was {word} after {}", seen.largest);
            verdict.violation(at, key, message);
        }
        if !accepted {
            continue;
        }
        seen.largest = seen.largest.max(token);
        let Some((told, until)) = told.get(&(&**by, attempt)) else { continue };
        match &seen.latest {
            // Of two that believe at once neither is the later one: `exclusion` judges them.
            Some((later, ..)) if later > told && later < until => {}
            Some((later, who, id)) if later > told => {
                let message = format!(
                    "{by} (attempt {attempt}) wrote after {who} (attempt {id}), whose hold began later"
                );
                verdict.violation(at, key, message);
            }
            _ => seen.latest = Some((*told, by.clone(), attempt)),
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::{Story, TTL};

    fn judged(story: &mut Story, at: u64, by: &str, attempt: u64, token: u64, accepted: bool) {
        let (key, by) = ("k".into(), by.into());
        let what = What::Judged { order: at, key, by, attempt, token, accepted };
        story.at(at).says("resource", what);
    }

    fn verdict(story: &Story) -> Verdict {
        look(&story.history(), &Bounds::new(TTL, 2))
    }

    #[test]
    fn the_check_accepts_a_refused_old_token() {
        let mut story = Story::new();
        judged(&mut story, 1, "a", 1, 5, true);
        judged(&mut story, 2, "b", 1, 6, true);
        judged(&mut story, 3, "a", 1, 5, false);
        judged(&mut story, 4, "b", 1, 6, true);
        let verdict = verdict(&story);
        assert!(verdict.passed(), "{verdict:?}");
        assert_eq!(verdict.checked, 4);
    }

    #[test]
    fn the_check_finds_a_falling_token() {
        let mut story = Story::new();
        judged(&mut story, 1, "b", 1, 6, true);
        judged(&mut story, 2, "a", 1, 5, true);
        assert_eq!(verdict(&story).violations.len(), 1);
    }

    #[test]
    fn the_check_finds_a_fence_that_refuses_the_newest() {
        let mut story = Story::new();
        judged(&mut story, 1, "b", 1, 6, true);
        judged(&mut story, 2, "b", 1, 6, false);
        assert_eq!(verdict(&story).violations.len(), 1);
    }

    #[test]
    fn the_check_finds_two_writes_of_one_number() {
        let mut story = Story::new();
        judged(&mut story, 1, "a", 1, 5, true);
        judged(&mut story, 1, "a", 1, 5, true);
        assert_eq!(verdict(&story).violations.len(), 1);
    }

    #[test]
    fn the_check_finds_a_late_write() {
        let mut story = Story::new();
        let a = story.hold("a", "k", 7, 0, 50);
        let b = story.hold("b", "k", 7, 60, 90);
        judged(&mut story, 70, "b", b, 7 << 10, true);
        judged(&mut story, 80, "a", a, 7 << 10, true);
        assert_eq!(verdict(&story).violations.len(), 1);
    }
}
