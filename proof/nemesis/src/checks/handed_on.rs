//! A key that nobody holds is granted to a waiter: soon while nothing is broken. Also while faults go on, a key does
//! not stay blocked for long if the store grants other keys to the processes of those that wait for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use latchwork::FencingToken;
use latchwork_store::Moment;

use super::waiting::Waits;
use super::{Bounds, Verdict};
use crate::event::Answer;
use crate::history::{History, Hold, Span};

/// A key that is blocked for so many times what a fault and a lost claim may cost is blocked by something else.
const STUCK: u32 = 4;

pub(super) fn look(history: &History, bounds: &Bounds) -> Verdict {
    let mut verdict = Verdict::default();
    let attempts = history.by_key();
    let holds = history.holds_by_key();
    let grants = grants(history);
    for (key, attempts) in &attempts {
        if key.starts_with(bounds.cut) {
            continue;
        }
        let waits = Waits::new(history, attempts);
        let mut from = attempts.first().map_or(Moment::NEVER, |first| first.tried);
        let mut last: Option<&Hold> = None;
        let next = holds.get(key).into_iter().flatten().map(Some).chain([None]);
        for next in next {
            let to = next.map_or(history.end(), |(_, hold)| hold.told);
            let gap = Gap { key, span: Span { from, to }, bound: bound(bounds, last) };
            verdict.checked += u64::from(waits.within(gap.span).next().is_some());
            if to.since(from) > gap.bound {
                gap.judge(&mut verdict, history, bounds, &waits, &grants);
            }
            if let Some(&(attempt, hold)) = next {
                let end = attempt.believed_until().unwrap_or(hold.told);
                if last.is_none() || end > from {
                    (from, last) = (from.max(end), Some(hold));
                }
            }
        }
    }
    verdict
}

/// How soon a key must be granted again: a waiter that does not come is passed by, the next one checks
/// every third of its ttl, and its answer takes no longer than its timeout. What nobody gave up, the store ends.
fn bound(bounds: &Bounds, last: Option<&Hold>) -> Duration {
    let timeout = (bounds.ttl / 4).min(Duration::from_secs(2));
    let bound = bounds.patience + bounds.ttl / 3 + timeout + bounds.travel + bounds.slack;
    let is_given_up = last.is_some_and(|hold| matches!(hold.released, Some((_, Answer::Yes))));
    if is_given_up { bound } else { bound + bounds.ends.max(bounds.takeover) }
}

/// What the store has granted to each process: when its holder was told, and the key.
type Grants<'a> = HashMap<&'a str, Vec<(Moment, &'a Arc<str>)>>;

fn grants(history: &History) -> Grants<'_> {
    let mut grants = Grants::new();
    for attempt in &history.attempts {
        let Some(hold) = &attempt.hold else { continue };
        if FencingToken::from_raw(hold.token).get().is_multiple_of(1_024) {
            grants.entry(&attempt.process).or_default().push((hold.told, &attempt.key));
        }
    }
    grants.values_mut().for_each(|of_one| of_one.sort_by_key(|(told, _)| *told));
    grants
}

/// A stretch of time in which nobody holds a key.
struct Gap<'a> {
    key: &'a Arc<str>,
    span: Span,
    /// It may last so long while nothing is broken.
    bound: Duration,
}

impl Gap<'_> {
    fn judge(
        &self,
        verdict: &mut Verdict,
        history: &History,
        bounds: &Bounds,
        waits: &Waits<'_>,
        grants: &Grants<'_>,
    ) {
        let Span { from, to } = self.span;
        for (waiter, span) in waits.within(self.span) {
            let quiet = longest_quiet(history, span, bounds.settle.max(bounds.takeover));
            let waited = quiet.to.since(quiet.from);
            if waited > self.bound && waited - history.all_stalled(quiet).min(waited) > self.bound {
                let message = format!(
                    "{} (attempt {}) waited {waited:?} for it, nobody held it, and nothing was broken",
                    waiter.process, waiter.id
                );
                return verdict.violation_of(from, self.key, &[&waiter.process], message);
            }
        }
        let most = (self.bound + bounds.settle) * STUCK;
        if to.since(from) <= most {
            return;
        }
        let served = waits.within(self.span).filter(|(waiter, span)| {
            let of_one = grants.get(&*waiter.process).map_or(&[][..], Vec::as_slice);
            let first = of_one.partition_point(|(told, _)| *told <= span.from);
            of_one[first..]
                .iter()
                .take_while(|(told, _)| *told < span.to)
                .any(|(_, k)| *k != self.key)
        });
        let blocked = covered(served.map(|(_, span)| span));
        if blocked > most {
            let message = format!(
                "nobody held it for {:?}, and for {blocked:?} of that it was waited for by processes that the store \
                 granted other keys",
                to.since(from)
            );
            verdict.violation(from, self.key, message);
        }
    }
}

/// The longest part of a stretch of time that no fault touches, nor what it leaves behind for so long.
fn longest_quiet(history: &History, span: Span, after: Duration) -> Span {
    let mut faults: Vec<_> = history.faults_near(span, after).collect();
    faults.sort_by_key(|fault| fault.from);
    let (mut longest, mut from) = (Span { from: span.from, to: span.from }, span.from);
    let ends = faults.iter().map(|fault| (fault.from, fault.to.plus(after)));
    for (begins, ends) in ends.chain([(span.to, span.to)]) {
        let to = begins.min(span.to);
        if to.since(from) > longest.to.since(longest.from) {
            longest = Span { from, to };
        }
        from = from.max(ends);
    }
    longest
}

/// How much time these stretches cover together.
fn covered(spans: impl Iterator<Item = Span>) -> Duration {
    let mut spans: Vec<_> = spans.collect();
    spans.sort_by_key(|span| span.from);
    let (mut sum, mut until) = (Duration::ZERO, Moment::from_nanos(0));
    for span in spans {
        sum += span.to.since(span.from.max(until));
        until = until.max(span.to);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::What;
    use crate::story::{Story, TTL};

    fn verdict(story: &Story) -> Verdict {
        look(&story.history(), &Bounds::new(TTL, 2))
    }

    #[test]
    fn the_check_finds_a_key_that_is_left_free() {
        assert!(verdict(&Story::handed_on(2_800)).violations.is_empty());
        // The patience of a waiter, a third of a ttl, a timeout and the slack.
        assert_eq!(verdict(&Story::handed_on(3_100)).violations.len(), 1);
    }

    #[test]
    fn a_fault_may_keep_a_key_from_its_waiter() {
        let mut story = Story::handed_on(5_000);
        story.at(1_000).run(What::Struck { fault: "cut".into() });
        story.at(1_500).run(What::Healed { fault: "cut".into() });
        assert!(verdict(&story).violations.is_empty());
        let mut story = Story::handed_on(6_500);
        story.at(1_000).run(What::Struck { fault: "cut".into() });
        story.at(1_500).run(What::Healed { fault: "cut".into() });
        assert_eq!(verdict(&story).violations.len(), 1, "it has ended long ago");
    }

    /// A fault every 2 s, and `b`, `c`, ... wait for `k` in turns. Meanwhile they are granted `l`, or are not.
    fn faults_go_on(is_served: bool) -> Verdict {
        let mut story = Story::new();
        story.hold("a", "k", 1, 0, 100);
        for n in 0..20 {
            let at = n * 2_000 + 200;
            story.at(at).run(What::Struck { fault: "cut".into() });
            story.at(at + 900).run(What::Healed { fault: "cut".into() });
            let attempt = story.at(at + 10).tries("b", "k", false);
            if is_served {
                story.hold("b", "l", n + 1, at + 1_000, at + 1_100);
            }
            let why = "timed_out".into();
            story.at(at + 1_990).says("b", What::GaveUp { attempt, why });
        }
        verdict(&story)
    }

    #[test]
    fn the_check_finds_a_key_that_stays_blocked_while_faults_go_on() {
        let found = faults_go_on(true).violations;
        assert!(found.len() == 1 && found[0].message.contains("other keys"), "{found:?}");
        // A store that grants nothing is broken by the faults.
        assert!(faults_go_on(false).violations.is_empty());
    }

    #[test]
    fn a_key_of_a_killed_holder_may_be_blocked_until_its_claim_has_ended() {
        for (admitted, violations) in [(4_000, 0), (6_500, 1)] {
            let mut story = Story::new();
            let a = story.at(0).tries("a", "k", false);
            story.granted("a", a, 1 << 10);
            let b = story.at(50).tries("b", "k", false);
            story.at(100).run(What::Killed { whom: "a".into() });
            story.at(admitted).granted("b", b, 2 << 10);
            assert_eq!(verdict(&story).violations.len(), violations, "{admitted}");
        }
    }
}
