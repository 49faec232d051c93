//! A task that was done is not begun again in its period. In the history, each period of a task is a key of its
//! own: `once0@1700000000000`. Its release is the word that it was done.

use super::{Bounds, Verdict};
use crate::event::Answer;
use crate::history::History;

pub(super) fn look(history: &History, _: &Bounds) -> Verdict {
    let mut verdict = Verdict::default();
    for (key, holds) in history.holds_by_key() {
        if !key.contains('@') {
            continue;
        }
        let done = holds.iter().find_map(|(attempt, hold)| match hold.released {
            Some((at, Answer::Yes)) => Some((attempt.id, at)),
            _ => None,
        });
        let Some((by, done)) = done else { continue };
        verdict.checked += 1;
        for (attempt, hold) in holds.iter().filter(|(_, hold)| hold.told > done) {
            let message = format!(
                "{} (attempt {}) began it, though attempt {by} had done it",
                attempt.process, attempt.id
            );
            verdict.violation(hold.told, &key, message);
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::{Story, TTL};

    fn verdict(story: &Story) -> Verdict {
        look(&story.history(), &Bounds::new(TTL, 2))
    }

    #[test]
    fn the_check_accepts_one_run_in_each_period() {
        let mut story = Story::new();
        story.hold("a", "once0@1", 1, 0, 100);
        story.hold("b", "once0@2", 2, 200, 300);
        let verdict = verdict(&story);
        assert!(verdict.passed(), "{verdict:?}");
        assert_eq!(verdict.checked, 2);
    }

    #[test]
    fn the_check_finds_a_second_run() {
        let mut story = Story::new();
        story.hold("a", "once0@1", 1, 0, 100);
        story.hold("b", "once0@1", 2, 200, 300);
        assert_eq!(verdict(&story).violations.len(), 1);
    }

    #[test]
    fn locks_may_be_taken_again() {
        let mut story = Story::new();
        story.hold("a", "k", 1, 0, 100);
        story.hold("b", "k", 2, 200, 300);
        assert_eq!(verdict(&story).checked, 0);
    }
}
