//! The ends of holds: given up by their clients, lost, taken away, not renewed.

use std::sync::Arc;

use latchwork::store::{Key, Moment};
use latchwork::{FencingToken, HoldState, LostReason};

use super::ended::Ending;
use super::id::{FIRST, HoldId};
use super::registry::{Hold, Registry};
use super::release::{Confirmed, How, Said, Teller, Told, answer, course};
use crate::http::error::ApiError;

/// A hold that its client gives up.
pub(crate) enum GivenUp {
    /// By this request: the hold is to be released.
    Now { hold: Box<Hold>, teller: Teller, told: Told },
    /// By an earlier request, which waits for the store.
    Before { how: How, name: Arc<str>, told: Told },
    /// By an earlier request that was confirmed.
    Confirmed(Confirmed),
}

/// A forced release under way.
pub(crate) struct Forcing<'a> {
    registry: &'a Registry,
    key: &'a Key,
}

impl Drop for Forcing<'_> {
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
    /// Takes a hold out because its client gives it up; says what an earlier request has done.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Lost`, `Released` and `Unconfirmed` for a hold that is not there any more; `Invalid` for the success
    /// of what is no task.
    pub(crate) fn give_up(&self, id: HoldId, owner: &str, asked: How) -> Result<GivenUp, ApiError> {
        let now = self.clock.now();
        let mut state = self.lock();
        let Some(hold) = state.holds.get(&id).filter(|hold| *hold.owner == *owner) else {
            let Some(epitaph) = state.ended.find(id).filter(|it| *it.owner == *owner) else {
                return Err(ApiError::no_hold());
            };
            let Ending::Left(how, said) = epitaph.ending else {
                return Err(epitaph.ending.error(&epitaph.name));
            };
            let name = epitaph.name.clone();
            return match (said, state.leaving.get(&id)) {
                (Said::Nothing, Some(told)) if asked != How::Succeed || how != How::Release => {
                    Ok(GivenUp::Before { how, name, told: told.clone() })
                }
                _ => answer(asked, how, said, &name).map(GivenUp::Confirmed),
            };
        };
        if asked == How::Succeed && hold.held.period().is_none() {
            return Err(ApiError::invalid(
                "hold: it is a lock, and no task of a period",
                "release it with DELETE /v1/holds/{hold}",
            ));
        }
        if now >= hold.end {
            self.sooner.notify_one();
            return Err(Ending::NotRenewed.error(&hold.name(&self.names)));
        }
        let hold = state.bury(now, id, Ending::Left(asked, Said::Nothing), &self.names);
        let (teller, told) = course();
        state.leaving.insert(id, told.clone());
        drop(state);
        self.fewer.notify_waiters();
        let hold = Box::new(hold.ok_or_else(ApiError::no_hold)?);
        Ok(GivenUp::Now { hold, teller, told })
    }

    /// Keeps what the store has said to a release.
    pub(crate) fn settled(&self, id: HoldId, how: How, said: Said) {
        let mut state = self.lock();
        state.leaving.remove(&id);
        state.ended.correct(id, Ending::Left(how, said));
        drop(state);
        self.fewer.notify_waiters();
    }

    /// Takes a hold out of which no client has heard.
    pub(crate) fn withdraw(&self, id: HoldId) -> Option<Hold> {
        self.end(id, Ending::Left(How::Release, Said::Unknown))
    }

    fn end(&self, id: HoldId, ending: Ending) -> Option<Hold> {
        let hold = self.lock().bury(self.clock.now(), id, ending, &self.names);
        self.fewer.notify_waiters();
        hold
    }

    /// Takes out a hold that its library guard has lost, and says how it ended; `None` if it is not known.
    pub(crate) fn lost(
        &self,
        key: &Key,
        token: FencingToken,
        reason: LostReason,
    ) -> Option<(Hold, Ending)> {
        let (id, ending) = {
            let state = self.lock();
            (*state.by_lock.get(&(key.clone(), token))?, state.loss(key, reason))
        };
        self.end(id, ending).map(|hold| (hold, ending))
    }

    /// Takes out a hold that was lost before it was noted here.
    pub(crate) fn lost_already(&self, id: HoldId) -> Option<(Hold, Ending)> {
        let ending = {
            let state = self.lock();
            let hold = state.holds.get(&id)?;
            let HoldState::Lost(lost) = hold.held.state() else { return None };
            let keys = hold.held.locks().map(|(key, _)| state.loss(key, lost.reason));
            keys.min_by_key(|ending| *ending != Ending::Forced)?
        };
        self.end(id, ending).map(|hold| (hold, ending))
    }

    /// A forced release of this key begins: what is taken away until its end was released by force.
    pub(crate) fn forcing<'a>(&'a self, key: &'a Key) -> Forcing<'a> {
        *self.lock().forcing.entry(key.clone()).or_default() += 1;
        Forcing { registry: self, key }
    }

    /// Takes out the holds of this key that the library has lost by now: those that a forced release has ended,
    /// and none that the store has granted since.
    pub(crate) fn evicted(&self, key: &Key) -> Vec<(Hold, Ending)> {
        let of_key: Vec<_> = {
            let state = self.lock();
            let of_key = state.by_lock.iter().filter(|((held, _), _)| held == key);
            of_key.map(|(_, id)| *id).collect()
        };
        of_key.into_iter().filter_map(|id| self.lost_already(id)).collect()
    }

    /// Takes out the holds that have ended, each with how; and when the next one ends.
    pub(crate) fn over(&self) -> (Vec<(Hold, Ending)>, Moment) {
        let now = self.clock.now();
        let mut state = self.lock();
        let mut over = Vec::new();
        let late: Vec<_> = state.by_end.range(..=(now, FIRST)).map(|(_, id)| *id).collect();
        for id in late {
            over.extend(
                state
                    .bury(now, id, Ending::NotRenewed, &self.names)
                    .map(|hold| (hold, Ending::NotRenewed)),
            );
        }
        let next = state.by_end.first().map_or(Moment::NEVER, |(end, _)| *end);
        drop(state);
        if !over.is_empty() {
            self.fewer.notify_waiters();
        }
        (over, next)
    }

    /// Forgets the holds that ended long ago.
    pub(crate) fn forget(&self) {
        let now = self.clock.now();
        self.lock().ended.forget(now);
    }

    /// Leaves all holds to their leases: they end by their ttl at the store. Their clients may rely on
    /// them yet, so they must not be released.
    pub(crate) fn leave(&self) -> usize {
        let mut state = self.lock();
        let holds = std::mem::take(&mut state.holds);
        state.by_end.clear();
        state.by_lock.clear();
        let count = holds.len();
        // To drop a guard is to release it.
        holds.into_values().for_each(std::mem::forget);
        count
    }
}
