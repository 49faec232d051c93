//! Without a fault nothing is lost, in doubt, refused or unknown. The end of a hold by its own
//! `max_hold` is no alarm.

use std::sync::Arc;

use latchwork_store::{Moment, validity};

use super::{Bounds, Verdict};
use crate::event::{Answer, What};
use crate::history::{History, Span};

pub(super) fn look(history: &History, bounds: &Bounds) -> Verdict {
    let mut verdict = Verdict::default();
    // What a fault did to a lease shows when that lease ends.
    let calm = |at: Moment| {
        let span = Span { from: at.minus(bounds.ttl), to: at };
        !history.disturbed(span, bounds.ttl + bounds.settle)
    };
    let mut alarm = |process: &Arc<str>, at: Moment, key: &Arc<str>, message: String| {
        if !calm(at) {
            return;
        }
        let span = Span { from: at.minus(bounds.ttl), to: at };
        // No answer came in time, since the server had no processor for a third of that time.
        let patience = validity::op_timeout(bounds.ttl);
        let awaited = Span { from: at.minus(patience), to: at };
        let is_starved = history.starved(awaited) >= patience / 3;
        if is_starved || history.stalled(process, span) >= bounds.ttl / 3 {
            verdict.exceptions += 1;
        } else {
            verdict.violation_of(at, key, &[process], message);
        }
    };
    for event in &history.events {
        if let What::Alarm { key, kind } = &event.what
            && &**kind != "max_hold"
        {
            let message = format!("{} was told: {kind}", event.process);
            alarm(&event.process, event.at, key, message);
        }
    }
    for attempt in &history.attempts {
        let who = format!("{} (attempt {})", attempt.process, attempt.id);
        if let Some((at, why)) = &attempt.gave_up
            && &**why == "failed"
        {
            alarm(&attempt.process, *at, &attempt.key, format!("{who} failed"));
        }
        let Some(hold) = &attempt.hold else { continue };
        if let Some((at, _, reason)) = &hold.lost
            && &**reason != "max_hold"
        {
            alarm(&attempt.process, *at, &attempt.key, format!("{who} lost it: {reason}"));
        }
        if let Some((at, answer @ (Answer::NotHeld | Answer::Failed))) = hold.released {
            let message = format!("the release of {who} answered {answer:?}");
            alarm(&attempt.process, at, &attempt.key, message);
        }
    }
    let holds = history.attempts.iter().filter_map(|attempt| attempt.hold.as_ref());
    verdict.checked = holds.filter(|hold| calm(hold.told)).count() as u64;
    verdict
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::story::{Story, TTL, ms};

    fn verdict(story: &Story) -> Verdict {
        look(&story.history(), &Bounds::new(TTL, 2))
    }

    fn lost(story: &mut Story, at: u64, reason: &str) {
        let attempt = story.at(0).tries("a", "k", false);
        story.granted("a", attempt, 1 << 10);
        let what = What::Lost { attempt, since: ms(at), reason: reason.into() };
        story.at(at).says("a", what);
    }

    #[test]
    fn the_check_accepts_a_run_without_faults() {
        let mut story = Story::new();
        story.hold("a", "k", 1, 0, 100);
        lost(&mut story, 300, "max_hold");
        assert!(verdict(&story).passed());
    }

    #[test]
    fn the_check_finds_a_loss_without_a_fault() {
        let mut story = Story::new();
        lost(&mut story, 300, "taken");
        assert_eq!(verdict(&story).violations.len(), 1);
    }

    #[test]
    fn the_check_finds_an_alarm_of_the_observer_alone() {
        let mut story = Story::new();
        story.hold("a", "k", 1, 0, 100);
        let (key, kind) = ("k".into(), "renew_failed".into());
        story.at(50).says("a", What::Alarm { key, kind });
        assert_eq!(verdict(&story).violations.len(), 1);
    }

    #[test]
    fn the_check_accepts_losses_after_faults() {
        let mut story = Story::new();
        lost(&mut story, 985, "expired");
        story.at(980).says("a", What::Stalled { length: Duration::from_millis(900) });
        assert_eq!(verdict(&story).exceptions, 1);
        for (length, exceptions) in [(100, 1), (50, 0)] {
            let mut story = Story::new();
            lost(&mut story, 985, "expired");
            story.at(980).run(What::Starved { length: Duration::from_millis(length) });
            assert_eq!(verdict(&story).exceptions, exceptions);
        }
        let mut story = Story::new();
        story.at(0).run(What::Struck { fault: "cut".into() });
        lost(&mut story, 985, "expired");
        assert_eq!(verdict(&story), Verdict::default());
    }
}
