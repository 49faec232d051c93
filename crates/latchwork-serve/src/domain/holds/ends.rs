//! The ends of holds: released by their clients, lost, released by force, not renewed.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use latchwork::{FencingToken, HoldState, LostReason};
use latchwork_store::{Key, Moment};

use super::ended::{Ending, answer};
use super::id::HoldId;
use super::registry::{Hold, Registry};
use super::release::{
    Confirmation, ProgressReceiver, ProgressSender, ReleaseKind, ReleaseOutcome, progress,
};
use super::ticket::Ticket;
use super::tickets::Doubtful;
use crate::domain::refusal::Refusal;

/// How long the store may take to answer about holds whose end is near.
const ANSWERED: Duration = Duration::from_secs(10);

/// How far the release of a hold is when a request for it comes.
pub(crate) enum ReleaseState {
    /// This request is the first: the hold is to be released.
    New {
        hold: Box<Hold>,
        /// This instance did not know it.
        is_new: bool,
        /// What this instance knew of it as holds of their own.
        parts: Vec<Hold>,
        sender: ProgressSender,
        receiver: ProgressReceiver,
    },
    /// An earlier request waits for the store.
    UnderWay { kind: ReleaseKind, name: Arc<str>, receiver: ProgressReceiver },
    /// An earlier request was confirmed.
    Confirmed(Confirmation),
}

/// A hold that was removed, and how it has ended.
type Ended = (HoldId, Hold, Ending);

/// A forced release under way, until it is dropped.
pub(crate) struct ForcedRelease<'a> {
    registry: &'a Registry,
    key: &'a Key,
}

impl Drop for ForcedRelease<'_> {
    fn drop(&mut self) {
        let mut state = self.registry.lock();
        if let Some(count) = state.forcing.get_mut(self.key) {
            *count -= 1;
            if *count == 0 {
                state.forcing.remove(self.key);
            }
        }
    }
}

impl Registry {
    /// Removes a hold because its client releases it; a repeat learns the result of the first request. A hold with a
    /// ticket need not be known here.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Lost`, `Released` and `Unconfirmed` for a hold that has ended; `Invalid` for the success of a
    /// lock that is no task.
    pub(crate) fn release(
        &self,
        id: HoldId,
        ticket: Option<&Ticket>,
        owner: &str,
        asked: ReleaseKind,
    ) -> Result<ReleaseState, Refusal> {
        let (now, wall) = (self.clock.now(), self.clock.wall());
        let mut state = self.lock();
        if let Some(ended) = state.ended.find(id).filter(|it| *it.owner == *owner) {
            if ended.successor.is_some() {
                return Err(ended.refusal());
            }
            let Ending::Released(kind, outcome) = ended.ending else {
                return Err(match ended.ending {
                    // The store did not have it, for which a release by another instance is a cause as well.
                    Ending::Lost("taken") if self.is_shared && ticket.is_some() => {
                        Ending::Released(asked, ReleaseOutcome::Unknown).refusal(&ended.name)
                    }
                    ending => ending.refusal(&ended.name),
                });
            };
            let name = ended.name.clone();
            // A success after a release is none, whatever the store will answer.
            let can_join = asked != ReleaseKind::Succeed || kind != ReleaseKind::Release;
            return match (outcome, state.releasing.get(&id)) {
                (ReleaseOutcome::Pending, Some(receiver)) if can_join => {
                    Ok(ReleaseState::UnderWay { kind, name, receiver: receiver.clone() })
                }
                _ => answer(asked, kind, outcome, &name).map(ReleaseState::Confirmed),
            };
        }
        let hold = state.holds.get(id);
        let period = match (hold, ticket) {
            (_, Some(ticket)) => ticket.period.clone(),
            (Some(hold), None) if hold.is_kept_for(owner) => hold.kept.period(),
            _ => return Err(Refusal::no_hold()),
        };
        if asked == ReleaseKind::Succeed && period.is_none() {
            return Err(Refusal::invalid(
                "hold: it is a lock, and no task of a period",
                "release it with DELETE /v1/holds/{hold}",
            ));
        }
        // Of a hold with a ticket, the store knows whether it is over.
        if let Some(hold) = hold.filter(|hold| ticket.is_none() && now >= hold.end) {
            self.sooner.notify_one();
            return Err(Ending::NotRenewed.refusal(&hold.name(&self.names)));
        }
        let ending = Ending::Released(asked, ReleaseOutcome::Pending);
        let mut hold = state.remove(now, id, ending, &self.names);
        // A renewal of the session may have found its locks one by one.
        let others = ticket.into_iter().flat_map(Ticket::ids).filter(|other| *other != id);
        let parts = others.filter_map(|other| state.forget(other, now)).collect();
        let is_new = hold.is_none();
        if let (None, Some(ticket)) = (&hold, ticket) {
            let since = now.minus(wall.saturating_sub(ticket.since));
            let of = state.common(&ticket.owner, None);
            let unknown = Hold::of_ticket(of, ticket, now, now, since);
            hold = Some(unknown);
        }
        if let Some(ticket) = ticket {
            state.end_all(now, ticket, ending, &self.names);
        }
        let (sender, receiver) = progress();
        state.releasing.insert(id, receiver.clone());
        drop(state);
        self.fewer.notify_waiters();
        let hold = Box::new(hold.ok_or_else(Refusal::no_hold)?);
        Ok(ReleaseState::New { hold, is_new, parts, sender, receiver })
    }

    /// Keeps the store's answer to a release.
    pub(crate) fn settle(&self, ids: &[HoldId], kind: ReleaseKind, outcome: ReleaseOutcome) {
        let mut state = self.lock();
        if let Some(first) = ids.first() {
            state.releasing.remove(first);
        }
        for id in ids {
            state.ended.correct(*id, Ending::Released(kind, outcome));
        }
        drop(state);
        self.fewer.notify_waiters();
    }

    /// Whether nobody releases the other locks of this lost hold: then the caller does.
    pub(crate) fn begin_abandoning(&self, id: HoldId) -> bool {
        match self.lock().releasing.entry(id) {
            Entry::Occupied(_) => false,
            Entry::Vacant(place) => {
                place.insert(progress().1);
                true
            }
        }
    }

    /// The other locks of a lost hold were released.
    pub(crate) fn end_abandoning(&self, id: HoldId) {
        self.lock().releasing.remove(&id);
        self.fewer.notify_waiters();
    }

    /// Removes a hold that no client has learned of.
    pub(crate) fn withdraw(&self, id: HoldId) -> Option<Hold> {
        self.end(id, Ending::Released(ReleaseKind::Release, ReleaseOutcome::Unknown))
    }

    fn end(&self, id: HoldId, ending: Ending) -> Option<Hold> {
        let hold = self.lock().remove(self.clock.now(), id, ending, &self.names);
        self.fewer.notify_waiters();
        hold
    }

    /// Removes a hold whose guard in the library was lost, with its ending; `None` if there is no such hold.
    pub(crate) fn lost(&self, key: &Key, token: FencingToken, reason: LostReason) -> Option<Ended> {
        let (id, ending) = {
            let state = self.lock();
            (*state.by_lock.get(&(key.clone(), token))?, state.loss(key, reason))
        };
        self.end(id, ending).map(|hold| (id, hold, ending))
    }

    /// Removes a hold if the library has lost it, also before it was entered here.
    pub(crate) fn lost_already(&self, id: HoldId) -> Option<Ended> {
        let ending = {
            let state = self.lock();
            let hold = state.holds.get(id)?;
            let HoldState::Lost(lost) = hold.kept.state() else { return None };
            let locks = hold.kept.locks().into_iter();
            let keys = locks.map(|(key, _)| state.loss(&key, lost.reason));
            keys.min_by_key(|ending| *ending != Ending::Forced)?
        };
        self.end(id, ending).map(|hold| (id, hold, ending))
    }

    /// Begins a forced release of this key: until its end, holds that are taken away were released by force.
    pub(crate) fn begin_forced_release<'a>(&'a self, key: &'a Key) -> ForcedRelease<'a> {
        *self.lock().forcing.entry(key.clone()).or_default() += 1;
        ForcedRelease { registry: self, key }
    }

    /// Removes the holds of this key that the library has lost by now: those that a forced release has ended,
    /// and none that the store has granted since.
    pub(crate) fn evicted(&self, key: &Key) -> Vec<Ended> {
        let of_key: Vec<_> = {
            let state = self.lock();
            let of_key = state.by_lock.iter().filter(|((held, _), _)| held == key);
            of_key.map(|(_, id)| *id).collect()
        };
        of_key.into_iter().filter_map(|id| self.lost_already(id)).collect()
    }

    /// Removes the holds that were not renewed in time, each with its ending. Returns those of which the store is to be
    /// asked, because another instance may have renewed them, and when the next one ends, too.
    pub(crate) fn remove_late(&self) -> (Vec<(Hold, Ending)>, Vec<Doubtful>, Moment) {
        let (now, wall) = (self.clock.now(), self.clock.wall());
        let mut state = self.lock();
        let (mut over, mut doubtful) = (Vec::new(), Vec::new());
        while let Some((_, id)) = state.holds.first().filter(|(end, _)| *end < now)
            && let Some(hold) = state.holds.get(id)
        {
            let ending = match hold.kept.known() {
                Some(known) if known.packed.max_left(wall).is_some_and(|left| left.is_zero()) => {
                    Ending::Lost("max_hold")
                }
                Some(_) if self.is_shared || hold.lent > 0 => {
                    let first = hold.kept.locks().into_iter().next().filter(|_| hold.lent == 0);
                    doubtful.extend(first.map(|(key, _)| Doubtful { id, key }));
                    // The answer says when it really is.
                    state.holds.set_end(id, now.plus(ANSWERED));
                    continue;
                }
                _ => Ending::NotRenewed,
            };
            let hold = state.remove(now, id, ending, &self.names);
            over.extend(hold.map(|hold| (hold, ending)));
        }
        let next = state.holds.first().map_or(Moment::NEVER, |(end, _)| end);
        drop(state);
        if !over.is_empty() {
            self.fewer.notify_waiters();
        }
        (over, doubtful, next)
    }

    /// Removes the ends that are too old to be kept.
    pub(crate) fn sweep(&self) {
        let now = self.clock.now();
        self.lock().sweep(now);
    }

    /// The guards of a lost hold keep its other locks from now on.
    pub(crate) fn keep_others(&self, id: HoldId, lost: Hold) {
        self.lock().left.insert(id, lost);
    }

    /// Takes the guards of a lost hold of this owner, if they keep its other locks. Dropping them releases these.
    pub(crate) fn take_others(&self, id: HoldId, owner: &str) -> Option<Hold> {
        let mut state = self.lock();
        let lost = match state.left.entry(id) {
            Entry::Occupied(lost) if *lost.get().of.owner == *owner => Some(lost.remove()),
            _ => None,
        };
        drop(state);
        self.fewer.notify_waiters();
        lost
    }

    /// Leaves the holds that this process keeps to their leases: they end by their ttl at the store. They must not be
    /// released, because their clients may still rely on them.
    /// Returns their number, and that of the holds that are left to their clients.
    pub(crate) fn leave(&self) -> (usize, usize) {
        let mut state = self.lock();
        let all = state.holds.len();
        let (holds, left) = (state.holds.take(), std::mem::take(&mut state.left));
        state.by_lock.clear();
        // They count by the numbers of the table.
        state.sessions.clear();
        state.streams.clear();
        drop(state);
        let guards = holds.filter(|hold| hold.kept.known().is_none());
        // Dropping a guard would release it.
        let guards = guards.map(std::mem::forget).count();
        let left = left.into_values().map(std::mem::forget).count();
        (guards + left, all - guards)
    }
}
