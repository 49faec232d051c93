//! Every history of a few claims on one key, whose clients read the queue at any time and remove
//! waiters by what they have read before.

use std::collections::HashSet;

use super::*;
use crate::kit::lineup::Admission;

/// The part of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Reads,
    Writes,
    /// A writer whose place nobody removes.
    Stays,
    /// It replaces the hold of the claim of this number by one of the other mode.
    Replaces(usize),
    /// It asks for one of the same mode, which is refused.
    Repeats(usize),
}

/// How often the claim has come, and its number: what is removed is never taken for what has come since.
type Place = (u8, usize);

/// What a client has read, and removes in parts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Removal {
    hold: Place,
    own: Place,
    waiters: Vec<Place>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct State {
    /// In order, and whether a later one has been held and released.
    queue: Vec<(Place, bool)>,
    /// How often each has come.
    came: [u8; 5],
    /// In which order they have come first; a claim that replaces a hold has the rank of that.
    ranks: [i64; 5],
    /// Those that have read at any time that they hold the key, and have not released it.
    hold: [bool; 5],
    left: [bool; 5],
    removal: Option<Removal>,
}

struct World<'a> {
    parts: &'a [Part],
    /// A mistake in the transaction, which has to be found.
    mistake: Option<Mistake>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    HoldIsNotCompared,
    FirstIsNotCompared,
    FirstIsRemovedFirst,
    UpgradeKeepsWaiters,
    RanksAreForgotten,
}

impl World<'_> {
    fn mode(&self, claim: usize) -> Mode {
        match self.parts[claim] {
            Part::Reads => Mode::Read,
            Part::Writes | Part::Stays => Mode::Write,
            Part::Replaces(hold) if self.mode(hold) == Mode::Read => Mode::Write,
            Part::Replaces(_) => Mode::Read,
            Part::Repeats(hold) => self.mode(hold),
        }
    }

    fn hold(&self, claim: usize) -> Option<usize> {
        match self.parts[claim] {
            Part::Replaces(hold) | Part::Repeats(hold) => Some(hold),
            _ => None,
        }
    }

    fn queued_claims(&self, state: &State) -> Vec<QueuedClaim> {
        let find = |claim| state.queue.iter().position(|((_, other), _)| *other == claim);
        let queued = |((_, claim), _): &(Place, bool)| QueuedClaim {
            mode: self.mode(*claim),
            beside: self.hold(*claim).and_then(find),
            yields: self.parts[*claim] != Part::Stays,
            rank: match self.mistake {
                Some(Mistake::RanksAreForgotten) => 0,
                _ => state.ranks[*claim],
            },
            replaces: self.hold(*claim).is_some(),
        };
        state.queue.iter().map(queued).collect()
    }

    fn verdict(&self, queued_claims: &[QueuedClaim], me: usize) -> Verdict {
        let verdict = verdict(queued_claims, me, queued_claims[me].beside);
        match verdict {
            Verdict::Overtakes(_)
                if self.mistake == Some(Mistake::UpgradeKeepsWaiters)
                    && queued_claims[me].mode == Mode::Write =>
            {
                Verdict::Granted
            }
            verdict => verdict,
        }
    }

    /// Every client reads the queue, and finds whether its claim holds the key.
    fn read(&self, state: &mut State) -> Result<(), String> {
        let queued_claims = self.queued_claims(state);
        let holding = holding(&queued_claims);
        let nodes: Vec<_> = queued_claims.iter().map(|it| Node { id: (), mode: it.mode }).collect();
        for (me, ((_, claim), is_late)) in state.queue.iter().enumerate() {
            let holds = match self.hold(*claim) {
                None => lineup::admission(&nodes, me) == Admission::Granted,
                Some(_) if state.hold[*claim] && queued_claims[me].beside.is_none() => {
                    lineup::admission(&nodes, me) == Admission::Granted
                }
                Some(_) => self.is_granted(&queued_claims, me, &holding)?,
            };
            let is_whole = queued_claims[me].beside.is_some_and(|hold| hold < me)
                && matches!(self.parts[*claim], Part::Replaces(_));
            if is_whole || self.hold(*claim).is_none() {
                let agrees = holding[me] == holds || self.mistake.is_some();
                check(agrees, || format!("{claim} by itself: {holds}"))?;
            }
            check(holds || !state.hold[*claim], || format!("{claim} held, and no longer does"))?;
            let is_new = holds && !state.hold[*claim];
            check(!is_new || !is_late, || format!("{claim} gets too small a token"))?;
            state.hold[*claim] |= holds;
        }
        self.exclude(state)
    }

    fn is_granted(
        &self,
        queued_claims: &[QueuedClaim],
        me: usize,
        holding: &[bool],
    ) -> Result<bool, String> {
        let verdict = self.verdict(queued_claims, me);
        let hold = queued_claims[me].beside;
        let is_well = match verdict {
            Verdict::Granted => true,
            Verdict::Behind(place) => place < me && holding[place] && Some(place) != hold,
            Verdict::Overtakes(first) => {
                let waiters = &queued_claims[first..me];
                let mut left = queued_claims.to_vec();
                left.drain(first..me);
                let after = super::verdict(&left, first, hold);
                waiters.iter().all(|it| it.yields)
                    && !holding[first..me].contains(&true)
                    && matches!(after, Verdict::Granted | Verdict::Behind(_))
            }
            Verdict::Stuck(place) => !holding[place] && !queued_claims[place].yields,
            Verdict::Earlier(place) => {
                let is_earlier = |hold: usize| queued_claims[place].rank < queued_claims[hold].rank;
                !holding[place] && hold.is_some_and(is_earlier)
            }
            Verdict::Rival(place) => !holding[place] && queued_claims[place].beside.is_some(),
            Verdict::Gone => hold.is_none_or(|hold| hold > me || !holding[hold]),
            Verdict::Mismatch(held) => held == queued_claims[me].mode,
        };
        check(is_well, || format!("{me} of {queued_claims:?}: {verdict:?}"))?;
        Ok(verdict == Verdict::Granted)
    }

    fn exclude(&self, state: &State) -> Result<(), String> {
        let all = || (0..self.parts.len()).filter(|claim| state.hold[*claim]);
        for (one, other) in all().flat_map(|one| all().map(move |other| (one, other))) {
            let share = [one, other].map(|it| self.mode(it)) == [Mode::Read; 2]
                || self.hold(one) == Some(other)
                || self.hold(other) == Some(one);
            check(one == other || share, || format!("{one} and {other} hold"))?;
        }
        Ok(())
    }

    /// All that may happen next.
    fn next(&self, state: &State) -> Result<Vec<State>, String> {
        let mut next = Vec::new();
        for claim in 0..self.parts.len() {
            let place = state.queue.iter().position(|((_, other), _)| *other == claim);
            if place.is_none() && !state.left[claim] && state.came[claim] < 2 {
                let mut then = state.clone();
                then.came[claim] += 1;
                if then.came[claim] == 1 {
                    let last = state.ranks.iter().max().map_or(0, |last| *last);
                    let of_hold = self.hold(claim).map_or(0, |hold| state.ranks[hold]);
                    then.ranks[claim] = if of_hold > 0 { of_hold } else { last + 1 };
                }
                then.queue.push(((then.came[claim], claim), false));
                next.push(then);
            }
            let Some(place) = place else { continue };
            let mut then = state.clone();
            then.queue.remove(place);
            then.left[claim] = true;
            if std::mem::take(&mut then.hold[claim]) {
                then.queue[..place].iter_mut().for_each(|(_, is_late)| *is_late = true);
            }
            next.push(then);
        }
        if state.removal.is_none() {
            let queued_claims = self.queued_claims(state);
            for (me, (own, _)) in state.queue.iter().enumerate() {
                if self.hold(own.1).is_some()
                    && let Verdict::Overtakes(first) =
                        verdict(&queued_claims, me, queued_claims[me].beside)
                    && let Some(hold) = queued_claims[me].beside
                {
                    let waiters = state.queue[first..me].iter().map(|(place, _)| *place).collect();
                    let (hold, own) = (state.queue[hold].0, *own);
                    let removal = Some(Removal { hold, own, waiters });
                    next.push(State { removal, ..state.clone() });
                }
            }
        }
        for size in 1..=state.removal.as_ref().map_or(0, |it| it.waiters.len()) {
            next.push(self.remove(state, size)?);
        }
        Ok(next)
    }

    /// One transaction.
    fn remove(&self, state: &State, size: usize) -> Result<State, String> {
        let mut then = state.clone();
        let Some(mut removal) = then.removal.take() else { return Ok(then) };
        let first = removal.waiters[0];
        let from = removal.waiters.len() - size;
        let removed: Vec<_> = if self.mistake == Some(Mistake::FirstIsRemovedFirst) {
            removal.waiters.drain(..size).collect()
        } else {
            removal.waiters.drain(from..).collect()
        };
        let is_there = |place: &Place| state.queue.iter().any(|(other, _)| other == place);
        let compares = |place, unless| self.mistake == Some(unless) || is_there(place);
        let is_done = compares(&removal.hold, Mistake::HoldIsNotCompared)
            && compares(&first, Mistake::FirstIsNotCompared)
            && is_there(&removal.own)
            && removed.iter().all(is_there);
        if !is_done {
            return Ok(then);
        }
        let upgrades = self.mode(removal.own.1) == Mode::Write;
        let rank = state.ranks[removal.hold.1];
        for (_, claim) in &removed {
            check(!state.hold[*claim], || format!("{claim} held, and was removed"))?;
            let is_later = !upgrades || self.hold(*claim).is_some() || state.ranks[*claim] >= rank;
            check(is_later, || format!("{claim} came before {}", removal.hold.1))?;
        }
        then.queue.retain(|(place, _)| !removed.contains(place));
        then.removal = Some(removal).filter(|it| !it.waiters.is_empty());
        Ok(then)
    }

    /// How many states there are.
    fn explore(&self) -> Result<usize, String> {
        let (mut seen, mut open) = (HashSet::new(), vec![State::default()]);
        while let Some(mut state) = open.pop() {
            let read = self.read(&mut state);
            read.map_err(|what| format!("{what}: {:?} {state:?}", self.parts))?;
            if seen.insert(state.clone()) {
                open.extend(self.next(&state).map_err(|what| format!("{what}: {state:?}"))?);
            }
        }
        Ok(seen.len())
    }
}

fn check(is_well: bool, what: impl Fn() -> String) -> Result<(), String> {
    if is_well { Ok(()) } else { Err(what()) }
}

/// All parts that four claims may have, and those of a reader that passes a writer and upgrades.
fn all_casts() -> Vec<Vec<Part>> {
    let passes = vec![Part::Reads, Part::Writes, Part::Replaces(0), Part::Reads, Part::Replaces(3)];
    [casts(4), vec![passes]].concat()
}

/// All parts that so many claims may have.
fn casts(claims: usize) -> Vec<Vec<Part>> {
    let mut all = vec![Vec::new()];
    for claim in 0..claims {
        let parts = [Part::Reads, Part::Writes, Part::Stays].into_iter();
        let parts = parts.chain((0..claim).map(Part::Replaces));
        let parts: Vec<_> = parts.chain((0..claim).map(Part::Repeats)).collect();
        let with = |cast: &Vec<Part>, part| [&**cast, &[part]].concat();
        all = all.iter().flat_map(|cast| parts.iter().map(|it| with(cast, *it))).collect();
    }
    all.retain(|cast| cast.iter().any(|part| matches!(part, Part::Replaces(_))));
    all
}

#[test]
fn no_history_of_four_claims_lets_two_hold() {
    let mut states = 0;
    for parts in all_casts() {
        states += World { parts: &parts, mistake: None }.explore().unwrap();
    }
    assert!(states > 100_000, "{states}");
}

/// What the transaction compares, and the order of the parts, are all needed.
#[test]
fn each_mistake_in_a_removal_is_found() {
    use Mistake::*;
    for mistake in [
        HoldIsNotCompared,
        FirstIsNotCompared,
        FirstIsRemovedFirst,
        UpgradeKeepsWaiters,
        RanksAreForgotten,
    ] {
        let is_found =
            |parts: &Vec<Part>| World { parts, mistake: Some(mistake) }.explore().is_err();
        assert!(all_casts().iter().any(is_found), "{mistake:?}");
    }
}

#[test]
fn a_claim_replaces_a_hold_of_the_other_mode() {
    let queued = |mode, beside| QueuedClaim {
        mode,
        beside,
        yields: true,
        rank: 0,
        replaces: beside.is_some(),
    };
    for (held, wanted) in [(Mode::Read, Mode::Write), (Mode::Write, Mode::Read)] {
        let queue = [queued(held, None), queued(wanted, Some(0))];
        assert_eq!(verdict(&queue, 1, Some(0)), Verdict::Granted);
        assert_eq!(holding(&queue), [true, true]);
        assert_eq!(verdict(&queue, 1, None), Verdict::Gone);
        let queue = [queued(held, None), queued(held, Some(0))];
        assert_eq!(verdict(&queue, 1, Some(0)), Verdict::Mismatch(held));
    }
}
