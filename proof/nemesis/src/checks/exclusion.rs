//! No two holders believe at once in holds that exclude each other.
//!
//! A hold is believed in from when its holder was told of it until its validity ends, its release
//! begins, its loss is told or its process is killed, whichever is first. The holder of a claim that was ended by
//! force learns of it at its next renewal (`told_in_time` judges when), and another may hold the key by then.

use latchwork_store::Mode;

use super::{Bounds, Verdict};
use crate::history::{Attempt, History, Hold};

pub(super) fn look(history: &History, _: &Bounds) -> Verdict {
    let mut verdict = Verdict::default();
    let evictions = history.evictions();
    let attempts = history.by_key();
    for (key, holds) in history.holds_by_key() {
        // A client with another limit brings its own, or sets it for all: nothing but the largest is sure.
        let limits = attempts.get(&key).into_iter().flatten().filter_map(|one| one.mode.limit());
        let limit = limits.max().unwrap_or(0);
        let mut open: Vec<&Attempt> = Vec::new();
        for (n, (attempt, hold)) in holds.into_iter().enumerate() {
            open.retain(|other| other.believed_until().is_some_and(|until| until > hold.told));
            // One that is over when it is told of, by its own clock, is believed in by nobody.
            let believed = attempt.believed_until().is_some_and(|until| until > hold.told);
            verdict.checked += u64::from(n > 0);
            if !believed {
                continue;
            }
            let had_ended = |one: &Attempt| evictions.had_begun(one, hold.told);
            let at_the_store: Vec<_> = open.iter().copied().filter(|one| !had_ended(one)).collect();
            let replaced = |other: &Attempt| {
                attempt.beside == Some(other.id) && attempt.process == other.process
            };
            let others: Vec<_> = open.iter().copied().filter(|other| !replaced(other)).collect();
            for other in others.iter().filter(|other| !fit(&others, other, attempt, limit)) {
                let is_excused = had_ended(other) || had_ended(attempt);
                if is_excused || fit(&at_the_store, other, attempt, limit) {
                    verdict.exceptions += 1;
                    continue;
                }
                let until = other.believed_until().unwrap_or(hold.told);
                let message = format!(
                    "{} (attempt {}) and {} (attempt {}) both hold it, for {:?} at least",
                    other.process,
                    other.id,
                    attempt.process,
                    attempt.id,
                    until.min(attempt.believed_until().unwrap_or(until)).since(hold.told),
                );
                let who = by_age(other, attempt).map(|attempt| &attempt.process);
                verdict.violation_of(hold.told, &key, &who, message);
            }
            open.push(attempt);
        }
    }
    verdict
}

/// The one with the older claim first. Where one has no number, the order in which they were told.
fn by_age<'a>(told: &'a Attempt, later: &'a Attempt) -> [&'a Attempt; 2] {
    let number = |attempt: &Attempt| attempt.hold.as_ref().and_then(Hold::number);
    match (number(told), number(later)) {
        (Some(first), Some(second)) if second < first => [later, told],
        _ => [told, later],
    }
}

/// Whether `one` of the open holds may be held beside a new one, where nobody asks with a larger limit.
fn fit(open: &[&Attempt], one: &Attempt, new: &Attempt, limit: u32) -> bool {
    match (one.mode, new.mode) {
        (Mode::Read, Mode::Read) => true,
        (Mode::Permits { .. }, Mode::Permits { take, .. }) => {
            let taken = open.iter().map(|other| match other.mode {
                Mode::Permits { take, .. } => u64::from(take),
                _ => u64::from(limit),
            });
            taken.sum::<u64>() + u64::from(take) <= u64::from(limit)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::checks::{Allowed, Check, ForeignBounds};
    use crate::event::What;
    use crate::story::{Story, TTL, ms};

    fn bounds() -> Bounds {
        Bounds::new(TTL, 2)
    }

    #[test]
    fn the_check_accepts_consecutive_holds() {
        let mut story = Story::new();
        story.hold("a", "k", 1, 0, 100);
        story.hold("b", "k", 2, 101, 200);
        story.hold("b", "other", 1, 50, 150);
        let verdict = look(&story.history(), &bounds());
        assert!(verdict.passed(), "{verdict:?}");
        assert_eq!(verdict.checked, 1);
    }

    #[test]
    fn the_check_finds_two_holders_at_once() {
        let mut story = Story::new();
        story.hold("a", "k", 1, 0, 100);
        story.hold("b", "k", 2, 99, 200);
        assert_eq!(look(&story.history(), &bounds()).violations.len(), 1);
    }

    #[test]
    fn a_holder_that_was_stopped_believes_until_its_validity_ends() {
        for (next, violations) in [(984, 1), (986, 0)] {
            let mut story = Story::new();
            let a = story.at(0).tries("a", "k", false);
            story.granted("a", a, 1 << 10);
            story.hold("b", "k", 2, next, 1_200);
            let verdict = look(&story.history(), &bounds());
            assert_eq!(verdict.violations.len(), violations, "{next}");
        }
    }

    #[test]
    fn tolerated_violations_are_counted() {
        let mut story = Story::new();
        story.at(50).run(What::Struck { fault: "failover".into() });
        story.at(60).run(What::Healed { fault: "failover".into() });
        story.hold("a", "k", 1, 0, 100);
        story.hold("b", "k", 2, 99, 200);
        let after = Duration::from_millis(50);
        let allowed = vec![Allowed { check: "exclusion".into(), fault: "failover".into(), after }];
        let check = Check::named("exclusion").unwrap();
        let lenient = check.look(&story.history(), &Bounds { allowed, ..bounds() });
        assert!(lenient.passed(), "{lenient:?}");
        assert_eq!(lenient.exceptions, 1);
        assert!(!check.look(&story.history(), &bounds()).passed());
    }

    /// The holder that was evicted may believe for a while; nobody else may, on no key.
    #[test]
    fn an_eviction_excuses_the_evicted_hold_alone() {
        for (key, grant, asked, violations) in [
            ("k", 1, 90, 0),
            ("k", 2, 90, 0),
            ("k", 7, 90, 1),
            ("other", 1, 90, 1),
            ("k", 1, 100, 1),
        ] {
            let mut story = Story::new();
            story.at(80).run(What::Struck { fault: "evict".into() });
            story.hold("a", "k", 1, 0, 150);
            story.hold("b", "k", 2, 99, 200);
            let asked = ms(asked);
            story.at(101).run(What::Evicted { key: key.into(), grant, asked });
            let found = look(&story.history(), &bounds());
            assert_eq!(found.violations.len(), violations, "{key} {grant} {asked:?}");
            assert_eq!(found.exceptions, 1 - violations as u64);
        }
    }

    #[test]
    fn an_evicted_permit_leaves_room_for_the_next_one_only() {
        for (holders, violations) in [(2, 0), (3, 2)] {
            let mut story = Story::new();
            let permit = Mode::Permits { take: 1, of: 2 };
            let take = |story: &mut Story, at, number: u64| {
                let attempt = story.at(at).tries_as("a", "k", false, permit);
                story.granted("a", attempt, number << 10);
            };
            for number in 1..=holders {
                take(&mut story, 0, number);
            }
            story.at(50).run(What::Evicted { key: "k".into(), grant: 1, asked: ms(40) });
            take(&mut story, 60, 9);
            let found = look(&story.history(), &bounds()).violations;
            let late = found.iter().filter(|found| found.at == ms(60)).count();
            assert_eq!(late, violations, "{found:?}");
        }
    }

    #[test]
    fn only_the_foreign_client_has_its_own_exceptions() {
        let after = Duration::from_millis(50);
        let allowed = Allowed { check: "exclusion".into(), fault: "stop".into(), after };
        let check = Check::named("exclusion").unwrap();
        // Who holds first, with which number; who comes, with which number.
        for (first, then, overstays, enters) in [
            (("kazoo3.0", 1), ("w0.0", 2), true, false),
            (("w1.0", 1), ("w0.0", 2), false, false),
            (("w1.0", 1), ("kazoo3.0", 2), false, true),
            // It had its claim before, and was told of it late.
            (("w1.0", 2), ("kazoo3.0", 1), true, false),
            (("w1.0", 2), ("kazoo3.0", 0), false, true),
            (("kazoo3.0", 0), ("w1.0", 2), true, false),
        ] {
            let mut story = Story::new();
            story.at(50).run(What::Stopped { whom: first.0.into() });
            story.hold(first.0, "k", first.1, 0, 100);
            story.hold(then.0, "k", then.1, 99, 200);
            let one = vec![allowed.clone()];
            for (name, passes, foreign) in [
                ("overstays", overstays, (one.clone(), Vec::new())),
                ("enters", enters, (Vec::new(), one)),
            ] {
                let (overstays, enters) = foreign;
                let foreign =
                    Some(ForeignBounds { name: "kazoo", overstays, enters, leaves: Vec::new() });
                let verdict = check.look(&story.history(), &Bounds { foreign, ..bounds() });
                assert_eq!(verdict.passed(), passes, "{first:?} {then:?} {name}: {verdict:?}");
            }
        }
    }

    #[test]
    fn modes_share_as_far_as_they_may() {
        let permits = |take| Mode::Permits { take, of: 3 };
        for (modes, violations) in [
            ([Mode::Read, Mode::Read, Mode::Read], 0),
            ([Mode::Read, Mode::Read, Mode::Write], 2),
            ([Mode::Write, Mode::Read, Mode::Read], 2),
            ([permits(1), permits(1), permits(1)], 0),
            ([permits(1), permits(1), permits(2)], 2),
            ([permits(3), Mode::Permits { take: 2, of: 5 }, permits(1)], 2),
            ([permits(3), Mode::Permits { take: 1, of: 5 }, permits(1)], 0),
        ] {
            let attempts = modes.iter().enumerate().map(|(n, mode)| Attempt {
                process: format!("p{n}").into(),
                task: None,
                id: 0,
                key: "k".into(),
                mode: *mode,
                fair: false,
                waits: true,
                several: false,
                beside: None,
                tried: ms(n as u64),
                blocked: None,
                gave_up: None,
                hold: Some(Hold {
                    told: ms(n as u64),
                    token: n as u64,
                    ttl: TTL,
                    first_valid_until: ms(900),
                    valid_until: ms(900),
                    counted: Vec::new(),
                    held: Vec::new(),
                    suspect: None,
                    lost: None,
                    releasing: None,
                    released: None,
                }),
                gone: None,
            });
            let history = History { attempts: attempts.collect(), ..History::default() };
            let verdict = look(&history, &bounds());
            assert_eq!(verdict.violations.len(), violations, "{modes:?}");
        }
    }

    #[test]
    fn an_empty_history_fails_the_check() {
        let key: Arc<str> = "k".into();
        let mut story = Story::new();
        story.at(1).says("a", What::Waiting { key });
        assert!(!look(&story.history(), &bounds()).passed());
    }
}
