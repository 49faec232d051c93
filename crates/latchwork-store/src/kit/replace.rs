//! Decides whether a claim that replaces a hold is admitted ([`Claim::beside`](crate::Claim::beside)),
//! in a queue of ordered nodes.
//!
//! For the stores of [`lineup`]. Such a claim takes a place at the end of the queue, like
//! any other: an older place would give a claim that it has overtaken the smaller token. So its
//! client removes the places of the waiters between the hold and its own. A waiter whose place was
//! removed takes another one, behind.
//!
//! A place that is read as a waiter's may be a holder's when it is removed. [`Verdict::Overtakes`] says what
//! the store has to compare in the same transaction: while the hold and the first of the waiters are
//! there, none of the places from the first waiter on holds the key.
//!
//! A claim whose place was removed keeps its rank: where it first stood. Readers may become holders
//! before it is back. An upgrade of such a hold does not remove it again, so a waiter is overtaken
//! only by holds that came before it.

use crate::claim::Mode;
use crate::kit::lineup::{self, Node};

/// One claim in the queue, in the store's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct QueuedClaim {
    /// The mode of its claim.
    pub mode: Mode,
    /// The place of the hold that it is to replace; `None` if it replaces none, or that is not in the
    /// queue.
    pub beside: Option<usize>,
    /// Whether its client takes another place when this one is removed while it waits.
    pub yields: bool,
    /// Its order when it first took a place. A claim that replaces a hold has the rank of the hold.
    pub rank: i64,
    /// Whether it is to replace a hold, or has replaced one, which need not be in the queue.
    pub replaces: bool,
}

/// The judgement of a claim that is to replace a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It holds the key, beside the hold.
    Granted,
    /// It waits until the holder at this place leaves.
    Behind(usize),
    /// All places from this one to its own are of waiters, and have to be removed first: the last
    /// ones first, each part in one transaction that compares the hold and this place.
    Overtakes(usize),
    /// It would wait for the claim at this place, and that one for the hold: its client does not take
    /// another place.
    Stuck(usize),
    /// The claim at this place came before the hold, and is not overtaken: the hold was granted while an
    /// upgrade had removed the place of this claim.
    Earlier(usize),
    /// The claim at this place is upgrading another hold.
    Rival(usize),
    /// The hold does not hold the key.
    Gone,
    /// A claim of this mode cannot replace a hold of that mode.
    Mismatch(Mode),
}

/// Returns whether each place holds the key, in one pass for all.
pub fn holding(queue: &[QueuedClaim]) -> Vec<bool> {
    let nodes: Vec<_> = queue.iter().map(|queued| Node { id: (), mode: queued.mode }).collect();
    let mut holds = lineup::holding(&nodes);
    // All places ahead but those of readers that hold the key.
    let mut others = 0;
    for (me, queued) in queue.iter().enumerate() {
        // What came after it was no hold when it came; such a place is one like any other.
        let hold = queued.beside.filter(|hold| *hold < me);
        match hold.map(|hold| (hold, queue[hold].mode, queued.mode)) {
            // Nobody is ahead but the hold.
            Some((hold, Mode::Read, Mode::Write)) => holds[me] = (hold, me) == (0, 1),
            // A reader that waits ahead would get the smaller token, later.
            Some((hold, Mode::Write, Mode::Read)) => holds[me] = holds[hold] && others == 1,
            _ => {}
        }
        others += usize::from(!holds[me] || queued.mode != Mode::Read);
    }
    holds
}

/// Decides about the claim at the place `me`, which is to replace the hold at the place `hold`.
///
/// # Panics
///
/// Panics if there is no place `me` in the queue.
pub fn verdict(queue: &[QueuedClaim], me: usize, hold: Option<usize>) -> Verdict {
    let ahead = &queue[..me];
    let holds = holding(ahead);
    let Some(hold) = hold.filter(|hold| holds.get(*hold) == Some(&true)) else {
        return Verdict::Gone;
    };
    let is_writer = |place: &usize| ahead[*place].mode != Mode::Read;
    let waits = |place: &usize| !holds[*place];
    let waiter = match (ahead[hold].mode, queue[me].mode) {
        (Mode::Read, Mode::Write) => {
            let upgrades = |place: &usize| {
                is_writer(place) && ahead[*place].beside.is_some_and(|hold| hold < *place)
            };
            if let Some(rival) = (0..me).filter(waits).find(upgrades) {
                return Verdict::Rival(rival);
            }
            let others = || (0..me).filter(|place| holds[*place] && *place != hold);
            let last = others().next_back();
            match (0..me).find(waits) {
                None => return last.map_or(Verdict::Granted, Verdict::Behind),
                Some(waiter) if is_writer(&waiter) && !others().any(|place| is_writer(&place)) => {
                    waiter
                }
                // While a writer holds beside this hold, readers become holders by its release.
                Some(waiter) => return Verdict::Behind(last.unwrap_or(waiter)),
            }
        }
        (Mode::Write, Mode::Read) => match (0..me).find(waits) {
            Some(waiter) => waiter,
            None => return Verdict::Granted,
        },
        (held, _) => return Verdict::Mismatch(held),
    };
    if let Some(stays) = (waiter..me).find(|place| !ahead[*place].yields) {
        return Verdict::Stuck(stays);
    }
    // A downgrade is always granted at once. A claim whose hold has ended waits for nothing.
    let is_earlier = |place: &usize| {
        let waiter = &ahead[*place];
        !waiter.replaces && waiter.rank < ahead[hold].rank
    };
    match (waiter..me).find(is_earlier).filter(|_| queue[me].mode == Mode::Write) {
        Some(earlier) => Verdict::Earlier(earlier),
        None => Verdict::Overtakes(waiter),
    }
}

#[cfg(test)]
mod tests;
