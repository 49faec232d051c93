//! Who was told that it waits in line, before another began to try, is admitted before that one.
//!
//! Fair attempts only: each has a place of its own. Whoever was stopped, or stood still for as
//! long as the store's patience, may be passed over; that is counted.

use std::sync::Arc;

use latchwork_store::Moment;

use super::{Bounds, Verdict};
use crate::history::{Attempt, History, Hold, Span};

pub(super) fn look(history: &History, bounds: &Bounds) -> Verdict {
    let mut verdict = Verdict::default();
    for (key, mut holds) in history.holds_by_key() {
        holds.retain(|(attempt, _)| attempt.fair);
        // The earliest block among those that were admitted at this place or later.
        let mut earliest = vec![Moment::NEVER; holds.len() + 1];
        for (n, (attempt, _)) in holds.iter().enumerate().rev() {
            earliest[n] = earliest[n + 1].min(attempt.blocked.unwrap_or(Moment::NEVER));
        }
        for (n, (late, _)) in holds.iter().enumerate() {
            // Those who were still without it when this one began.
            let open = holds.partition_point(|(_, hold)| hold.told <= late.tried);
            verdict.checked += u64::from(earliest[open] < late.tried);
            if earliest[n + 1] < late.tried {
                passed_over(&mut verdict, history, bounds, &key, late, &holds[n..]);
            }
        }
    }
    verdict
}

/// Judges one that was admitted before others that had waited when it began.
fn passed_over(
    verdict: &mut Verdict,
    history: &History,
    bounds: &Bounds,
    key: &Arc<str>,
    late: &Attempt,
    holds: &[(&Attempt, &Hold)],
) {
    let admitted = holds[0].1.told;
    for (early, _) in &holds[1..] {
        let Some(blocked) = early.blocked.filter(|blocked| *blocked < late.tried) else { continue };
        let span = Span { from: blocked, to: admitted };
        let disturbed =
            history.faults_near(span, bounds.settle).any(|fault| &*fault.name != "kill");
        if disturbed || history.all_stalled(span) >= bounds.patience {
            verdict.exceptions += 1;
            continue;
        }
        let message = format!(
            "{} (attempt {}) waited when {} (attempt {}) began, which was admitted first",
            early.process, early.id, late.process, late.id
        );
        verdict.violation(admitted, key, message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::What;
    use crate::story::{Story, TTL};

    /// `a` holds until 100; `b` is blocked at 20, `c` begins at `c_tries`; both are admitted.
    fn story(c_tries: u64, b_admitted: u64, c_admitted: u64) -> Story {
        let mut story = Story::new();
        let a = story.at(0).tries("a", "k", true);
        story.granted("a", a, 1 << 10);
        let b = story.at(10).tries("b", "k", true);
        story.at(20).says("b", What::Blocked { attempt: b });
        let c = story.at(c_tries).tries("c", "k", true);
        story.at(100).released("a", a);
        story.at(b_admitted).granted("b", b, b_admitted << 10);
        story.released("b", b);
        story.at(c_admitted).granted("c", c, c_admitted << 10);
        story.released("c", c);
        story
    }

    fn verdict(story: &Story) -> Verdict {
        look(&story.history(), &Bounds::new(TTL, 3))
    }

    #[test]
    fn the_check_accepts_fifo_order() {
        let verdict = verdict(&story(30, 110, 120));
        assert!(verdict.passed(), "{verdict:?}");
        assert_eq!(verdict.checked, 1);
    }

    #[test]
    fn the_check_finds_an_overtaking_waiter() {
        assert_eq!(verdict(&story(30, 120, 110)).violations.len(), 1);
    }

    #[test]
    fn the_check_allows_a_start_before_the_queueing_answer() {
        assert!(verdict(&story(15, 120, 110)).violations.is_empty());
    }

    #[test]
    fn a_stopped_waiter_may_be_skipped() {
        let mut story = story(30, 120, 110);
        story.at(90).run(What::Stopped { whom: "b".into() });
        let verdict = verdict(&story);
        assert!(verdict.violations.is_empty());
        assert_eq!(verdict.exceptions, 1);
    }
}
