//! A hold that ended otherwise than by a release has told its holder by the end of its validity,
//! give or take what the process could not run. A hold that was taken away has told its holder by
//! the next renewal, a third of a ttl later.

use std::sync::Arc;

use latchwork_store::validity;

use super::{Bounds, Verdict};
use crate::history::{History, Span};
use crate::schedule::EVICT;

pub(super) fn look(history: &History, bounds: &Bounds) -> Verdict {
    let mut verdict = Verdict::default();
    for attempt in &history.attempts {
        let Some(hold) = &attempt.hold else { continue };
        let told = hold.lost.as_ref().map(|(told, ..)| *told);
        let gave_up = hold.releasing.map(|(at, _)| at);
        let until = told.or(gave_up).or(attempt.gone).unwrap_or_else(|| history.end());
        let span = Span { from: hold.valid_until, to: until };
        let mut late = history.running(&attempt.process, span);
        if late > bounds.told {
            // Where servers wait for a processor, so do the threads of workers, but for the one that naps.
            late = late.saturating_sub(history.starved(span));
        }
        if told.is_none() && late <= bounds.told {
            continue;
        }
        verdict.checked += 1;
        if late > bounds.told {
            let how = if told.is_some() { "was told" } else { "was not told" };
            let message = format!(
                "{} (attempt {}) {how} of its loss {late:?} after its validity ended",
                attempt.process, attempt.id
            );
            verdict.violation_of(until, &attempt.key, &[&attempt.process], message);
        }
    }
    taken(&mut verdict, history, bounds);
    verdict
}

/// Judges the holds that were taken away by force.
fn taken(verdict: &mut Verdict, history: &History, bounds: &Bounds) {
    let evictions = history.evictions();
    for attempt in &history.attempts {
        let Some(hold) = &attempt.hold else { continue };
        let Some((asked, gone)) = evictions.of(attempt, hold) else { continue };
        let believed_until = attempt.believed_until().unwrap_or(hold.told);
        if hold.told >= asked || believed_until <= gone {
            continue;
        }
        let span = Span { from: gone, to: believed_until };
        // A fault may keep the renewal from its answer.
        if history.faults_near(span, bounds.settle).any(|fault| &*fault.name != EVICT) {
            continue;
        }
        verdict.checked += 1;
        let most = validity::renew_every(hold.ttl) + bounds.relay + bounds.travel + bounds.slack;
        let late = history.running(&attempt.process, span);
        if late > most {
            let message = format!(
                "{} (attempt {}) believed in it for {late:?} after it was taken, more than {most:?}",
                attempt.process, attempt.id
            );
            let key: &Arc<str> = &attempt.key;
            verdict.violation(believed_until, key, message);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::event::{How, What};
    use crate::story::{Story, TTL, ms};

    /// Granted at 0, so valid until 985.
    fn granted() -> (Story, u64) {
        let mut story = Story::new();
        let attempt = story.at(0).tries("a", "k", false);
        story.granted("a", attempt, 1 << 10);
        (story, attempt)
    }

    fn lost(story: &mut Story, attempt: u64, at: u64) {
        let what = What::Lost { attempt, since: ms(985), reason: "expired".into() };
        story.at(at).says("a", what);
    }

    fn verdict(story: &Story) -> Verdict {
        look(&story.history(), &Bounds::new(TTL, 2))
    }

    #[test]
    fn the_check_finds_a_late_report() {
        for (at, violations) in [(990, 0), (1_030, 0), (1_040, 1)] {
            let (mut story, attempt) = granted();
            lost(&mut story, attempt, at);
            let verdict = verdict(&story);
            assert_eq!((verdict.checked, verdict.violations.len()), (1, violations), "{at}");
        }
    }

    #[test]
    fn the_check_counts_from_the_end_of_a_stop() {
        for (at, violations) in [(3_040, 0), (3_060, 1)] {
            let (mut story, attempt) = granted();
            story.at(500).run(What::Stopped { whom: "a".into() });
            story.at(3_000).run(What::Continued { whom: "a".into() });
            story.at(3_001).says("a", What::Stalled { length: Duration::from_millis(2_499) });
            lost(&mut story, attempt, at);
            assert_eq!(verdict(&story).violations.len(), violations, "{at}");
        }
    }

    #[test]
    fn a_stall_is_no_delay() {
        let (mut story, attempt) = granted();
        story.at(1_090).says("a", What::Stalled { length: Duration::from_millis(100) });
        lost(&mut story, attempt, 1_100);
        assert!(verdict(&story).passed());
    }

    #[test]
    fn a_machine_without_a_processor_is_no_delay() {
        for (length, violations) in [(30, 0), (5, 1)] {
            let (mut story, attempt) = granted();
            story.at(1_040).run(What::Starved { length: Duration::from_millis(length) });
            lost(&mut story, attempt, 1_041);
            assert_eq!(verdict(&story).violations.len(), violations, "{length}");
        }
    }

    #[test]
    fn the_check_finds_a_loss_that_was_not_reported() {
        let (mut story, attempt) = granted();
        story.at(1_500).says("a", What::Releasing { attempt, how: How::Drop });
        assert_eq!(verdict(&story).violations.len(), 1);
        let (mut story, _) = granted();
        story.at(1_500).run(What::Killed { whom: "a".into() });
        assert_eq!(verdict(&story).violations.len(), 1);
        let (mut story, _) = granted();
        story.at(900).run(What::Killed { whom: "a".into() });
        story.at(5_000).run(What::Inspected { entries: 0 });
        assert_eq!(verdict(&story), Verdict::default());
    }

    /// Granted at 0, evicted at 200, told at `told`.
    fn evicted(told: u64) -> Verdict {
        let (mut story, attempt) = granted();
        story.at(201).run(What::Evicted { key: "k".into(), grant: 1, asked: ms(200) });
        story.at(told).says("a", What::Lost { attempt, since: ms(told), reason: "taken".into() });
        verdict(&story)
    }

    #[test]
    fn the_next_renewal_reports_an_eviction() {
        let well = evicted(201 + 330);
        assert!(well.violations.is_empty() && well.checked == 2, "{well:?}");
        assert_eq!(evicted(201 + 333 + 310).violations.len(), 1);
    }
}
