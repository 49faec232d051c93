//! While a claim is held nobody else has held its key: a store that forgets the claim lets another
//! hold come and go, and the next one that is handed over inside the first holder's process has the
//! smaller token. So has a waiter whom one of two servers granted the claim before it was told.

use super::token_order::{Granted, order};
use super::{Bounds, Verdict};
use crate::history::{Attempt, History};

pub(super) fn look(history: &History, _: &Bounds) -> Verdict {
    let mut verdict = Verdict::default();
    let evictions = history.evictions();
    for (key, holds) in history.holds_by_key() {
        // A claim that was ended by force goes on inside its process until the next renewal.
        let had_ended = |attempt: &Attempt| {
            attempt.hold.as_ref().is_some_and(|hold| evictions.had_begun(attempt, hold.told))
        };
        order(&mut verdict, &key, &holds, Granted::Before, &had_ended);
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::token_order;
    use crate::event::How;
    use crate::event::What;
    use crate::story::{Story, TTL, ms};

    #[test]
    fn the_check_finds_a_handover_after_a_later_hold() {
        let mut story = Story::new();
        let first = story.at(0).tries("a", "k", false);
        story.granted("a", first, 8 << 10);
        story.at(20).says("a", What::Releasing { attempt: first, how: How::Release });
        story.hold("b", "k", 9, 30, 40);
        let second = story.at(25).tries("a", "k", false);
        story.at(50).granted("a", second, (8 << 10) + 1);
        let (history, bounds) = (story.history(), Bounds::new(TTL, 2));
        assert_eq!(look(&history, &bounds).violations.len(), 1);
        assert_eq!(token_order::look(&history, &bounds).violations.len(), 0);
    }

    #[test]
    fn the_check_excuses_a_handover_of_an_evicted_claim_alone() {
        for (grant, violations) in [(8, 0), (9, 1)] {
            let mut story = Story::new();
            let first = story.at(0).tries("a", "k", false);
            story.granted("a", first, 8 << 10);
            story.at(20).says("a", What::Releasing { attempt: first, how: How::Release });
            story.at(22).run(What::Evicted { key: "k".into(), grant, asked: ms(21) });
            story.hold("b", "k", 9, 30, 40);
            let second = story.at(25).tries("a", "k", false);
            story.at(50).granted("a", second, (8 << 10) + 1);
            let found = look(&story.history(), &Bounds::new(TTL, 2));
            assert_eq!(
                (found.violations.len(), found.exceptions),
                (violations, 1 - violations as u64)
            );
        }
    }

    /// One of two servers may have granted it before the other one's hold.
    #[test]
    fn the_check_finds_a_hold_that_was_waited_for_meanwhile() {
        let mut story = Story::new();
        let waiter = story.at(10).tries("a", "k", false);
        story.hold("b", "k", 9, 30, 40);
        story.at(50).granted("a", waiter, 8 << 10);
        let (history, bounds) = (story.history(), Bounds::new(TTL, 2));
        assert_eq!(look(&history, &bounds).violations.len(), 1);
        assert_eq!(token_order::look(&history, &bounds).violations.len(), 0);
    }

    #[test]
    fn the_check_accepts_consecutive_handovers() {
        let mut story = Story::new();
        for (n, from) in [0, 10, 20].into_iter().enumerate() {
            let attempt = story.at(from).tries("a", "k", false);
            story.granted("a", attempt, (8 << 10) + n as u64);
            story.at(from + 5).released("a", attempt);
        }
        let verdict = look(&story.history(), &Bounds::new(TTL, 2));
        assert!(verdict.passed(), "{verdict:?}");
        assert_eq!(verdict.checked, 2);
    }
}
