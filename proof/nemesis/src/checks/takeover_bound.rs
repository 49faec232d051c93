//! The key that a killed process held passes on in time.

use super::waiting::Waits;
use super::{Bounds, Verdict};
use crate::history::{Attempt, History, Span};

pub(super) fn look(history: &History, bounds: &Bounds) -> Verdict {
    let mut verdict = Verdict::default();
    let attempts = history.by_key();
    for (key, holds) in history.holds_by_key() {
        if key.starts_with(bounds.cut) {
            continue;
        }
        let waits = Waits::new(history, &attempts[&key]);
        // The end of one hold frees nothing beside others that share the key.
        for (victim, hold) in holds.iter().filter(|(victim, _)| victim.excludes_all()) {
            let killed = history.faults.iter().find(|f| {
                &*f.name == "kill"
                    && f.whom.as_ref() == Some(&victim.process)
                    && f.from >= hold.told
            });
            let Some(killed) = killed.map(|fault| fault.from) else { continue };
            if hold.releasing.is_some() || hold.lost.is_some() || hold.valid_until <= killed {
                continue;
            }
            let next = holds.iter().map(|(_, next)| next.told).find(|told| *told > killed);
            let until = next.unwrap_or(history.end());
            // Whoever was killed meanwhile may have been the next.
            let kills = history.faults.iter().filter(|f| &*f.name == "kill" && f.from <= until);
            let from = kills.map(|fault| fault.from).max().unwrap_or(killed);
            let mut worst: Option<(&Attempt, Span)> = None;
            for (waiter, span) in waits.within(Span { from, to: until }) {
                let others = history.faults_near(span, bounds.settle).any(|f| &*f.name != "kill");
                if waiter.process == victim.process || others {
                    continue;
                }
                if worst.is_none_or(|(_, w)| w.to.since(w.from) < span.to.since(span.from)) {
                    worst = Some((waiter, span));
                }
            }
            let Some((waiter, span)) = worst else { continue };
            verdict.checked += 1;
            let late = span.to.since(span.from).saturating_sub(history.all_stalled(span));
            if late > bounds.takeover {
                let message = format!(
                    "{} was killed with it, {} waited {late:?} for it",
                    victim.process, waiter.process
                );
                verdict.violation(span.to, &key, message);
            }
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::What;
    use crate::story::{Story, TTL};

    fn story(admitted: Option<u64>) -> Verdict {
        let mut story = Story::new();
        let a = story.at(0).tries("a", "k", false);
        story.granted("a", a, 1 << 10);
        let b = story.at(50).tries("b", "k", false);
        story.at(100).run(What::Killed { whom: "a".into() });
        if let Some(admitted) = admitted {
            story.at(admitted).granted("b", b, 2 << 10);
        }
        story.at(3_000).run(What::Inspected { entries: 0 });
        look(&story.history(), &Bounds::new(TTL, 2))
    }

    #[test]
    fn the_check_accepts_a_takeover_within_the_bound() {
        assert!(story(Some(1_390)).passed());
    }

    #[test]
    fn the_check_finds_a_late_takeover() {
        assert_eq!(story(Some(1_410)).violations.len(), 1);
    }

    #[test]
    fn the_check_finds_a_key_that_is_never_granted_again() {
        assert_eq!(story(None).violations.len(), 1);
    }

    #[test]
    fn a_kill_without_a_freed_lock_is_not_counted() {
        let mut story = Story::new();
        story.hold("a", "k", 1, 0, 50);
        story.at(100).run(What::Killed { whom: "a".into() });
        story.hold("b", "k", 2, 200, 300);
        assert!(!look(&story.history(), &Bounds::new(TTL, 2)).passed());
    }
}
