//! What a holder learns of the end of its hold is true: it expired no earlier than its validity ended, it was taken
//! only if somebody ended it by force, and a release is not refused while the hold is valid.

use std::collections::HashMap;

use latchwork_store::Moment;

use super::{Bounds, Verdict};
use crate::event::{Answer, How};
use crate::history::{Attempt, History, Hold};

pub(super) fn look(history: &History, _: &Bounds) -> Verdict {
    let mut verdict = Verdict::default();
    let evictions = history.evictions();
    let mut largest: HashMap<(&str, u64), u64> = HashMap::new();
    let mut several: HashMap<(&str, Option<u32>), Vec<&Attempt>> = HashMap::new();
    for attempt in &history.attempts {
        let Some(hold) = &attempt.hold else { continue };
        let known = largest.entry(attempt.claim(hold)).or_default();
        *known = hold.token.max(*known);
        if attempt.several {
            several.entry((&attempt.process, attempt.task)).or_default().push(attempt);
        }
    }
    for attempt in &history.attempts {
        let Some(hold) = &attempt.hold else { continue };
        let siblings = several.get(&(&*attempt.process, attempt.task));
        let siblings = siblings.filter(|_| attempt.several).map_or(&[][..], Vec::as_slice);
        let together = || siblings.iter().copied().filter(|other| is_with(other, attempt, hold));
        let all = || std::iter::once(attempt).chain(together());
        let force = || all().filter_map(|it| Some(evictions.of(it, it.hold.as_ref()?)?.0));
        let who = format!("{} (attempt {})", attempt.process, attempt.id);
        let mut find = |at, message: String| {
            verdict.violation_of(at, &attempt.key, &[&attempt.process], message);
        };
        let mut checked = 0;
        if let Some((told, since, reason)) = &hold.lost {
            checked += 1;
            if since > told {
                find(*told, format!("{who} is lost {:?} in the future", since.since(*told)));
            }
            let valid_until = all().filter_map(|it| known_at(it.hold.as_ref()?, *told)).min();
            let by_time = matches!(&**reason, "expired" | "max_hold");
            if let Some(valid_until) = valid_until.filter(|until| by_time && since < until) {
                let early = valid_until.since(*since);
                find(*told, format!("{who} ended by time, {early:?} before its validity"));
            }
            if &**reason == "taken" && !force().any(|asked| asked <= *since) {
                find(*since, format!("{who} was taken, and nobody has ended it by force"));
            }
        }
        if let (Some((began, How::Release)), Some((at, answer))) = (hold.releasing, hold.released) {
            checked += 1;
            let own = evictions.of(attempt, hold);
            // The release of several is answered for all of them, so one that had ended is enough.
            let valid_until = all().filter_map(|it| Some(it.hold.as_ref()?.valid_until)).min();
            let was_valid = valid_until.is_some_and(|until| at < until);
            let is_last = largest.get(&attempt.claim(hold)) == Some(&hold.token);
            match answer {
                Answer::NotHeld if was_valid && !force().any(|asked| asked <= at) => {
                    find(
                        at,
                        format!("{who} was valid, and its release answered that it was not held"),
                    );
                }
                // A handover inside the process does not ask the store.
                Answer::Yes if is_last && own.is_some_and(|(_, ended)| ended < began) => {
                    find(
                        at,
                        format!("{who} had been ended by force, and its release answered yes"),
                    );
                }
                _ => {}
            }
        }
        verdict.checked += checked;
    }
    verdict
}

/// Whether another attempt of the same task was granted together with this one: a task does one thing at a time.
fn is_with(other: &Attempt, attempt: &Attempt, hold: &Hold) -> bool {
    let Some(its) = &other.hold else { return false };
    other.id != attempt.id && other.tried <= hold.told && attempt.tried <= its.told
}

/// Until when the holder counted on its hold then.
fn known_at(hold: &Hold, then: Moment) -> Option<Moment> {
    let last = |seen: &[(Moment, Moment)]| {
        seen[..seen.partition_point(|(at, _)| *at <= then)].last().copied()
    };
    let known = last(&hold.counted).into_iter().chain(last(&hold.held));
    known.max_by_key(|(at, _)| *at).map(|(_, valid_until)| valid_until)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::What;
    use crate::story::{Story, TTL, ms};

    fn verdict(story: &Story) -> Verdict {
        look(&story.history(), &Bounds::new(TTL, 2))
    }

    /// Granted at 0, so valid until 985.
    fn granted() -> (Story, u64) {
        let mut story = Story::new();
        let attempt = story.at(0).tries("a", "k", false);
        story.granted("a", attempt, 1 << 10);
        (story, attempt)
    }

    fn lost(at: u64, since: u64, reason: &str, evicted: Option<u64>) -> usize {
        let (mut story, attempt) = granted();
        if let Some(asked) = evicted {
            let asked = ms(asked);
            story.at(300).run(What::Evicted { key: "k".into(), grant: 1, asked });
        }
        story.at(at).says("a", What::Lost { attempt, since: ms(since), reason: reason.into() });
        let verdict = verdict(&story);
        assert_eq!(verdict.checked, 1);
        verdict.violations.len()
    }

    #[test]
    fn the_check_knows_when_a_hold_may_end() {
        assert_eq!(lost(990, 985, "expired", None), 0);
        assert_eq!(lost(990, 980, "expired", None), 1, "before its validity");
        assert_eq!(lost(990, 995, "expired", None), 1, "in the future");
        assert_eq!(lost(400, 400, "taken", None), 1, "by nobody");
        assert_eq!(lost(400, 400, "taken", Some(290)), 0);
        assert_eq!(lost(400, 280, "taken", Some(290)), 1, "before it was asked for");
        assert_eq!(lost(400, 400, "session_ended", None), 0);
    }

    #[test]
    fn a_task_of_a_period_is_ended_by_the_name_of_its_key() {
        let mut story = Story::new();
        let attempt = story.at(0).tries("a", "k@1795678314000", false);
        story.granted("a", attempt, 1 << 10);
        let asked = ms(290);
        story.at(300).run(What::Evicted { key: "k".into(), grant: 1, asked });
        story.at(400).says("a", What::Lost { attempt, since: ms(400), reason: "taken".into() });
        assert!(verdict(&story).passed());
    }

    #[test]
    fn the_check_finds_a_release_that_is_answered_wrongly() {
        for (answer, evicted, violations) in [
            (Answer::Yes, false, 0),
            (Answer::NotHeld, true, 0),
            (Answer::Failed, false, 0),
            (Answer::NotHeld, false, 1),
            (Answer::Yes, true, 1),
        ] {
            let (mut story, attempt) = granted();
            if evicted {
                let asked = ms(290);
                story.at(300).run(What::Evicted { key: "k".into(), grant: 1, asked });
            }
            story.at(400).says("a", What::Releasing { attempt, how: How::Release });
            story.at(410).says("a", What::Released { attempt, answer });
            let found = verdict(&story).violations.len();
            assert_eq!(found, violations, "{answer:?}, evicted: {evicted}");
        }
    }

    #[test]
    fn a_release_of_several_keys_is_refused_for_any_of_them() {
        for (answered, violations) in [(990, 0), (970, 2)] {
            let mut story = Story::new();
            let both: Vec<_> = ["k", "l"].map(|key| story.at(0).tries_several("a", key)).into();
            // The second one is valid for longer than the first.
            for (attempt, granted) in both.iter().zip([1, 500]) {
                story.at(granted).granted("a", *attempt, granted << 10);
            }
            for attempt in &both {
                story.at(960).says("a", What::Releasing { attempt: *attempt, how: How::Release });
            }
            for attempt in both {
                let answer = Answer::NotHeld;
                story.at(answered).says("a", What::Released { attempt, answer });
            }
            assert_eq!(verdict(&story).violations.len(), violations);
        }
    }

    #[test]
    fn a_hold_of_several_keys_is_lost_with_any_of_them() {
        let mut story = Story::new();
        let both: Vec<_> = ["k", "l"].map(|key| story.at(0).tries_several("a", key)).into();
        for (attempt, token) in both.iter().zip([1 << 10, 2 << 10]) {
            story.at(1).granted("a", *attempt, token);
        }
        story.at(300).run(What::Evicted { key: "k".into(), grant: 1, asked: ms(290) });
        for attempt in both {
            let reason = "taken".into();
            story.at(400).says("a", What::Lost { attempt, since: ms(400), reason });
        }
        assert!(verdict(&story).passed());
    }
}
