//! The store keeps a claim for at least as long as its holder counts on it, and for no longer than it may.

use std::collections::HashMap;
use std::time::Duration;

use latchwork::FencingToken;
use latchwork_store::Moment;

use super::{Bounds, Verdict};
use crate::event::What;
use crate::history::{Attempt, History, Hold, Span};

pub(super) fn look(history: &History, bounds: &Bounds) -> Verdict {
    let mut verdict = Verdict::default();
    let mut holds: HashMap<(&str, u64), Vec<(&Attempt, &Hold)>> = HashMap::new();
    for attempt in &history.attempts {
        let Some(hold) = &attempt.hold else { continue };
        let grant = FencingToken::from_raw(hold.token).grant_number();
        holds.entry((&attempt.key, grant)).or_default().push((attempt, hold));
    }
    for event in &history.events {
        let What::Kept { key, grant, asked, remaining } = &event.what else { continue };
        // It was measured between the question and the answer.
        let kept_until = event.at.plus(*remaining);
        // What it tells in steps, or in milliseconds, may be rounded up.
        let most = bounds.ends + bounds.grain.unwrap_or_default() + Duration::from_millis(1);
        let holders = holds.get(&(&**key, *grant));
        // What takes a lock away holds it for a moment, with a ttl of its own.
        if holders.is_some() && *remaining > most {
            let message = format!("the store keeps it for {remaining:?}, more than {most:?}");
            verdict.violation(event.at, key, message);
        }
        for (attempt, hold) in holders.into_iter().flatten() {
            let Some(counted) = counted_on(hold, *asked) else { continue };
            verdict.checked += 1;
            if counted > kept_until {
                // While a voter is away, the one that keeps the claim for the shortest time counts,
                // also if its renewal is still under way. The voter that is away votes for nobody.
                let span = Span { from: *asked, to: event.at };
                if bounds.votes && history.disturbed(span, bounds.settle) {
                    verdict.exceptions += 1;
                    continue;
                }
                let message = format!(
                    "{} (attempt {}) counts on {:?} more than the store keeps",
                    attempt.process,
                    attempt.id,
                    counted.since(kept_until)
                );
                verdict.violation_of(event.at, key, &[&attempt.process], message);
            }
        }
    }
    verdict
}

/// Until when the holder counted on its hold then, as far as it had noted that down.
fn counted_on(hold: &Hold, then: Moment) -> Option<Moment> {
    let known = hold.counted.partition_point(|(noted, _)| *noted <= then);
    hold.counted[..known].iter().map(|(_, valid_until)| *valid_until).max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::{Story, TTL, ms};

    /// Granted at 0 and so valid until 985; renewed at 400 until 1385.
    fn verdict(asked: u64, answered: u64, remaining: u64) -> Verdict {
        let mut story = Story::new();
        let attempt = story.at(0).tries("a", "k", false);
        story.granted("a", attempt, 7 << 10);
        story.at(400).says("a", What::Renewed { attempt, valid_until: ms(1_385) });
        let (asked, remaining) = (ms(asked), Duration::from_millis(remaining));
        let what = What::Kept { key: "k".into(), grant: 7, asked, remaining };
        story.at(answered).run(what);
        look(&story.history(), &Bounds::new(TTL, 2))
    }

    #[test]
    fn an_absent_voter_leaves_the_minimum_of_the_rest() {
        let mut story = Story::new();
        let attempt = story.at(0).tries("a", "k", false);
        story.granted("a", attempt, 7 << 10);
        story.at(50).run(What::Struck { fault: "restart".into() });
        story.at(60).run(What::Healed { fault: "restart".into() });
        let what = What::Kept {
            key: "k".into(),
            grant: 7,
            asked: ms(100),
            remaining: ms(600).since(ms(0)),
        };
        story.at(101).run(what);
        let mut bounds = Bounds::new(TTL, 2);
        assert_eq!(look(&story.history(), &bounds).violations.len(), 1);
        bounds.votes = true;
        let verdict = look(&story.history(), &bounds);
        assert_eq!((verdict.violations.len(), verdict.exceptions), (0, 1));
    }

    #[test]
    fn the_check_accepts_a_longer_lease() {
        let verdict = verdict(500, 501, 900);
        assert!(verdict.passed(), "{verdict:?}");
        assert_eq!(verdict.checked, 1);
        assert!(self::verdict(399, 450, 590).passed(), "it was asked before the renewal was noted");
    }

    #[test]
    fn the_check_finds_an_overlong_validity() {
        assert_eq!(verdict(500, 501, 880).violations.len(), 1);
        assert_eq!(verdict(100, 101, 880).violations.len(), 1);
    }

    #[test]
    fn the_check_finds_a_claim_that_is_kept_for_too_long() {
        assert!(verdict(500, 501, 1_001).passed());
        assert_eq!(verdict(500, 501, 1_002).violations.len(), 1);
    }
}
