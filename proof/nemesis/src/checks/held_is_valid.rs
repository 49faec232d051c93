//! `ensure_held` says yes only within the validity, and never after the loss was told. And the
//! validity of a new hold ends within its ttl of the moment when its holder was told.

use latchwork_store::validity;

use super::{Bounds, Verdict};
use crate::history::History;

pub(super) fn look(history: &History, _: &Bounds) -> Verdict {
    let mut verdict = Verdict::default();
    for attempt in &history.attempts {
        let Some(hold) = &attempt.hold else { continue };
        let who = format!("{} (attempt {})", attempt.process, attempt.id);
        let most = validity::valid_until(hold.told, hold.ttl);
        if hold.first_valid_until > most {
            let more = hold.first_valid_until.since(most);
            let message = format!("{who} counts on {more:?} more than was granted");
            verdict.violation(hold.told, &attempt.key, message);
        }
        for (at, valid_until) in &hold.held {
            verdict.checked += 1;
            if at >= valid_until {
                let late = at.since(*valid_until);
                let message = format!("{who} was told yes {late:?} after its validity ended");
                verdict.violation(*at, &attempt.key, message);
            }
            if let Some((lost, ..)) = &hold.lost
                && at > lost
            {
                let message = format!("{who} was told yes {:?} after its loss", at.since(*lost));
                verdict.violation(*at, &attempt.key, message);
            }
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::What;
    use crate::story::{Story, TTL, ms};

    fn story(held: u64, valid_until: u64, lost: Option<u64>) -> Verdict {
        let mut story = Story::new();
        let attempt = story.at(0).tries("a", "k", false);
        story.granted("a", attempt, 1 << 10);
        if let Some(lost) = lost {
            let what = What::Lost { attempt, since: ms(lost), reason: "taken".into() };
            story.at(lost).says("a", what);
        }
        let what = What::Held { attempt, valid_until: ms(valid_until) };
        story.at(held).says("a", what);
        look(&story.history(), &Bounds::new(TTL, 2))
    }

    #[test]
    fn the_check_accepts_use_within_the_validity() {
        assert!(story(900, 985, None).passed());
        assert!(story(990, 1_300, None).passed(), "it was renewed in between");
    }

    #[test]
    fn the_check_finds_use_after_the_validity() {
        assert_eq!(story(990, 985, None).violations.len(), 1);
    }

    #[test]
    fn the_check_finds_use_after_a_loss() {
        assert_eq!(story(600, 985, Some(500)).violations.len(), 1);
    }

    #[test]
    fn the_check_finds_a_validity_beyond_the_grant() {
        let mut story = Story::new();
        let attempt = story.at(100).tries("a", "k", false);
        let valid_until = ms(1_089);
        let what = What::Granted { attempt, token: 1, ttl: TTL, valid_until };
        story.says("a", what);
        assert_eq!(look(&story.history(), &Bounds::new(TTL, 2)).violations.len(), 1);
    }
}
