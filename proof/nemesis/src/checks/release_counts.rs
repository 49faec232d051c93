//! A release lets the next one in: whoever waits, or tries, after a release was answered with yes
//! is admitted by it and not by the end of a ttl. The same for a guard that was dropped.

use latchwork_store::Moment;

use super::waiting::Waits;
use super::{Bounds, Verdict};
use crate::event::{Answer, How};
use crate::history::{Attempt, History, Hold, Span};

pub(super) fn look(history: &History, bounds: &Bounds) -> Verdict {
    let mut verdict = Verdict::default();
    let attempts = history.by_key();
    for (key, holds) in history.holds_by_key() {
        if key.starts_with(bounds.cut) {
            continue;
        }
        let waits = Waits::new(history, &attempts[&key]);
        let relied_on =
            |attempt: &Attempt| attempt.believed_until().unwrap_or(Moment::from_nanos(0));
        // Until when one of the holds before is relied on.
        let mut earlier = Moment::from_nanos(0);
        for (n, (attempt, hold)) in holds.iter().enumerate() {
            let before = earlier;
            earlier = before.max(relied_on(attempt));
            let Some(from) = freed(hold) else { continue };
            // Beside others that share the key, the end of one hold frees nothing.
            let mut beside = holds[n + 1..].iter().take_while(|(_, hold)| hold.told <= from);
            if before > from || beside.any(|(attempt, _)| relied_on(attempt) > from) {
                continue;
            }
            let next = holds.get(n + 1).map_or(history.end(), |(_, next)| next.told);
            let mut looked = holds.get(n + 1).is_some() && next <= from;
            let mut worst: Option<(&str, Span)> = None;
            for (waiter, span) in waits.within(Span { from, to: next }) {
                if history.disturbed(span, bounds.settle) {
                    continue;
                }
                looked = true;
                let length = |span: Span| span.to.since(span.from);
                if worst.is_none_or(|(_, known)| length(known) < length(span)) {
                    worst = Some((&waiter.process, span));
                }
            }
            verdict.checked += u64::from(looked);
            let Some((waiter, span)) = worst else { continue };
            let late = span.to.since(span.from);
            if late > bounds.wake && late - history.all_stalled(span).min(late) > bounds.wake {
                let message = format!(
                    "{} (attempt {}) gave it up, {waiter} waited {late:?} longer",
                    attempt.process, attempt.id
                );
                verdict.violation(span.to, &key, message);
            }
        }
    }
    verdict
}

/// Since when the key should be free, if its holder gave it up.
fn freed(hold: &Hold) -> Option<Moment> {
    match (hold.releasing?, hold.released) {
        ((_, How::Release), Some((at, Answer::Yes))) => Some(at),
        ((at, How::Drop), _) if at < hold.valid_until => Some(at),
        _ => None,
    }
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
    fn the_check_accepts_a_quick_grant() {
        let verdict = verdict(&Story::handed_on(130));
        assert!(verdict.passed(), "{verdict:?}");
        assert_eq!(verdict.checked, 1);
    }

    #[test]
    fn the_check_finds_a_wake_up_by_the_ttl_alone() {
        assert_eq!(verdict(&Story::handed_on(1_000)).violations.len(), 1);
    }

    #[test]
    fn the_check_finds_a_missing_wake_up() {
        let mut story = Story::new();
        story.hold("a", "k", 1, 0, 100);
        let b = story.at(50).tries("b", "k", false);
        story.at(900).says("b", What::GaveUp { attempt: b, why: "timed_out".into() });
        assert_eq!(verdict(&story).violations.len(), 1);
    }

    #[test]
    fn a_dropped_guard_counts_as_well() {
        let mut story = Story::new();
        let a = story.at(0).tries("a", "k", false);
        story.granted("a", a, 1 << 10);
        story.at(100).says("a", What::Releasing { attempt: a, how: How::Drop });
        let b = story.at(50).tries("b", "k", false);
        story.at(990).granted("b", b, 2 << 10);
        assert_eq!(verdict(&story).violations.len(), 1);
    }

    /// One reader holds the key while many others come and go, and a writer waits for it.
    #[test]
    fn the_check_accepts_a_wait_for_a_long_reader() {
        let mut story = Story::new();
        story.hold("a", "k", 1, 0, 890);
        for n in 0..20 {
            story.hold("b", "k", 2 + n, 2 * n, 2 * n + 1);
        }
        let c = story.at(20).tries("c", "k", false);
        story.at(900).granted("c", c, 50 << 10);
        let verdict = verdict(&story);
        assert!(verdict.passed() && verdict.checked == 1, "{verdict:?}");
    }

    #[test]
    fn the_check_pauses_during_a_fault() {
        let mut story = Story::handed_on(1_000);
        story.at(500).run(What::Stopped { whom: "b".into() });
        assert_eq!(verdict(&story), Verdict::default());
    }
}
