//! `ensure_held` says yes only within the validity, and never after the loss was told; nor does a
//! release. And the validity of a new or renewed hold ends within its ttl of the moment when its
//! holder was told, which is not longer than was asked. A lost hold is not renewed.

use latchwork_store::validity;

use super::{Bounds, Verdict};
use crate::event::Answer;
use crate::history::{Attempt, History, Hold};

pub(super) fn look(history: &History, bounds: &Bounds) -> Verdict {
    let mut verdict = Verdict::default();
    for attempt in &history.attempts {
        let Some(hold) = &attempt.hold else { continue };
        let who = format!("{} (attempt {})", attempt.process, attempt.id);
        // A service counts the drift of its clients in.
        if hold.ttl > bounds.ttl && bounds.relay.is_zero() {
            let message =
                format!("{who} was granted {:?} and had asked for {:?}", hold.ttl, bounds.ttl);
            verdict.violation(hold.told, &attempt.key, message);
        }
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
        renewals(&mut verdict, attempt, hold, bounds);
        answer(&mut verdict, attempt, hold);
    }
    verdict
}

/// Judges what the holder was told of its renewals. The first entry is the grant.
fn renewals(verdict: &mut Verdict, attempt: &Attempt, hold: &Hold, bounds: &Bounds) {
    let who = format!("{} (attempt {})", attempt.process, attempt.id);
    for (at, valid_until) in hold.counted.iter().skip(1) {
        let most = validity::valid_until(*at, hold.ttl.max(bounds.ttl));
        if *valid_until > most {
            let more = valid_until.since(most);
            let message = format!("{who} counts on {more:?} more than a renewal gives");
            verdict.violation(*at, &attempt.key, message);
        }
        if hold.lost.as_ref().is_some_and(|(lost, ..)| at > lost) {
            verdict.violation(*at, &attempt.key, format!("{who} was renewed after its loss"));
        }
    }
}

/// Judges the answer to the release.
fn answer(verdict: &mut Verdict, attempt: &Attempt, hold: &Hold) {
    let (Some((began, _)), Some((at, Answer::Yes))) = (hold.releasing, hold.released) else {
        return;
    };
    // The store says that it still had the claim of a hold that was in doubt.
    let is_over = began >= hold.valid_until && !hold.is_suspect();
    if is_over || hold.lost.as_ref().is_some_and(|(lost, ..)| began > *lost) {
        let who = format!("{} (attempt {})", attempt.process, attempt.id);
        let message = format!("{who} had lost it, and its release was answered yes");
        verdict.violation(at, &attempt.key, message);
    }
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
    fn the_check_finds_a_ttl_beyond_what_was_asked() {
        let mut story = Story::new();
        let attempt = story.at(0).tries("a", "k", false);
        story.granted("a", attempt, 1 << 10);
        story.at(1).says("a", What::Held { attempt, valid_until: ms(985) });
        let verdict = |ttl| look(&story.history(), &Bounds::new(ttl, 2)).violations.len();
        assert_eq!((verdict(TTL), verdict(TTL / 2)), (0, 1));
    }

    #[test]
    fn the_check_finds_a_renewal_beyond_its_ttl() {
        for (valid_until, violations) in [(1_488, 0), (1_489, 1)] {
            let mut story = Story::new();
            let attempt = story.at(0).tries("a", "k", false);
            story.granted("a", attempt, 1 << 10);
            let valid_until = ms(valid_until);
            story.at(500).says("a", What::Renewed { attempt, valid_until });
            let found = look(&story.history(), &Bounds::new(TTL, 2)).violations;
            assert_eq!(found.len(), violations, "{found:?}");
        }
    }

    #[test]
    fn the_check_finds_a_renewal_and_a_yes_after_a_loss() {
        let mut story = Story::new();
        let attempt = story.at(0).tries("a", "k", false);
        story.granted("a", attempt, 1 << 10);
        let lost = What::Lost { attempt, since: ms(499), reason: "taken".into() };
        story.at(500).says("a", lost);
        story.at(600).says("a", What::Renewed { attempt, valid_until: ms(985) });
        story.at(700).released("a", attempt);
        assert_eq!(look(&story.history(), &Bounds::new(TTL, 2)).violations.len(), 2);
    }

    #[test]
    fn the_check_finds_a_yes_after_the_validity() {
        for (at, violations) in [(984, 0), (985, 1)] {
            let mut story = Story::new();
            let attempt = story.at(0).tries("a", "k", false);
            story.granted("a", attempt, 1 << 10);
            story.at(at).released("a", attempt);
            let found = look(&story.history(), &Bounds::new(TTL, 2)).violations;
            assert_eq!(found.len(), violations, "{found:?}");
        }
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
