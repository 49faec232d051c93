//! All holds of the service, and the moment at which each one ends if its client does not renew it.

use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use latchwork::{FencingToken, HoldState, LostReason};
use latchwork_store::{Clock, Holder, Key, Moment};
use tokio::sync::Notify;

use super::ended::{EndedHold, EndedHolds, Ending};
use super::hold_status::HoldStatus;
use super::id::HoldId;
use super::kept::{Granted, Kept, Known};
use super::origin::SessionNumber;
use super::release::ProgressReceiver;
use super::sessions::{KnownSession, Streams};
use super::table::Table;
use super::ticket::{Packed, Ticket};
use super::validity::{keep_until, promised, valid_for};
use crate::domain::names::Names;
use crate::domain::refusal::{Kind, RENEW_AGAIN_STEP, Refusal};

/// The most locks and waiting requests of one token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) holds: usize,
    pub(crate) waiters: usize,
}

/// The weight of a name in the limit of its token: one for each KiB, because a long name takes as much memory as
/// many short ones.
pub(crate) fn weight(name: &str) -> usize {
    name.len().div_ceil(1024).max(1)
}

/// What many holds have in common, kept once for all of them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Common {
    /// The name of the token that made them.
    pub(crate) owner: Arc<str>,
    /// As their claims have it; `None` if no request of this instance can need it.
    holder: Option<Holder>,
}

impl Hash for Common {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Of all texts: many holds may differ in one of them alone.
        let texts = self.holder.as_ref().map(|it| (&it.text, &it.candidate, &it.origin, &it.value));
        (&self.owner, texts).hash(state);
    }
}

/// What the store has said of a hold that this instance did not renew since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// It was not asked.
    No,
    /// Another instance has renewed it, or its end is not near.
    Held,
    /// It was there shortly before its end.
    NearEnd,
}

/// A hold of a client. There may be many, so it is small.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(super) of: Arc<Common>,
    pub(crate) kept: Kept,
    /// When this process looks after it. Guards are released then, never before their client has stopped relying on them.
    pub(in crate::domain) end: Moment,
    pub(crate) since: Moment,
    pub(super) ttl_millis: u32,
    /// What the store said of the hold of this ticket when this instance asked since its renewal here.
    pub(super) seen: Seen,
    /// How many guards keep the hold of this ticket meanwhile, each for a change.
    pub(super) lent: u16,
    /// A session keeps the hold of this ticket.
    pub(super) in_session: bool,
}

impl Hold {
    pub(super) fn new(
        of: Arc<Common>,
        kept: Kept,
        ttl: Duration,
        end: Moment,
        since: Moment,
    ) -> Self {
        let ttl_millis = u32::try_from(ttl.as_millis()).unwrap_or(u32::MAX);
        let (seen, lent, in_session) = (Seen::No, 0, false);
        Self { of, kept, end, since, ttl_millis, seen, lent, in_session }
    }

    /// The hold of a ticket that is valid until `until`.
    pub(super) fn of_ticket(
        of: Arc<Common>,
        ticket: &Ticket,
        until: Moment,
        end: Moment,
        since: Moment,
    ) -> Self {
        let kept = Kept::Ticket(Known { packed: Packed::new(ticket), until });
        Self::new(of, kept, ticket.ttl, end, since)
    }

    /// The client's ttl.
    pub(super) fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_millis.into())
    }

    /// The name of the token that made it.
    pub(crate) fn owner(&self) -> &Arc<str> {
        &self.of.owner
    }

    /// Whether this process keeps it for this owner. Of another hold, a request has the ticket.
    pub(super) fn is_kept_for(&self, owner: &str) -> bool {
        *self.of.owner == *owner && self.kept.known().is_none()
    }

    /// The name of its first lock.
    pub(crate) fn name(&self, names: &Names) -> String {
        let first = self.kept.locks().into_iter().next();
        first.map(|(key, _)| names.name_of(key.as_str())).unwrap_or_default()
    }

    /// The same hold once more, if a session goes on remembering this one.
    pub(super) fn remembered(&self) -> Option<Self> {
        let known = self.kept.known().filter(|_| self.in_session)?;
        Some(Self { of: self.of.clone(), kept: Kept::Ticket(known.clone()), ..*self })
    }

    /// Its ticket, if this instance has all of it.
    pub(super) fn ticket(&self, id: HoldId) -> Option<Ticket> {
        let holder = self.of.holder.as_ref()?;
        self.kept.known()?.packed.ticket(id, &self.of.owner, holder)
    }
}

/// Keeps the holds.
pub(crate) struct Registry {
    state: Mutex<State>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) limits: Limits,
    /// Whether other instances may renew and release the holds that are kept by their clients.
    pub(super) is_shared: bool,
    pub(super) names: Names,
    /// Notified when a new hold ends before all others.
    pub(crate) sooner: Notify,
    /// Notified when a hold has ended.
    pub(crate) fewer: Notify,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) holds: Table,
    /// The holds that a guard keeps.
    pub(super) by_lock: HashMap<(Key, FencingToken), HoldId>,
    /// The locks of tickets of several, but for the first of each.
    pub(super) others: HashSet<HoldId>,
    pub(super) sessions: HashMap<SessionNumber, KnownSession>,
    pub(super) streams: HashMap<SessionNumber, Streams>,
    commons: HashSet<Arc<Common>>,
    pub(super) ended: EndedHolds,
    /// The releases that the store has not answered yet.
    pub(super) releasing: HashMap<HoldId, ProgressReceiver>,
    /// The forced releases under way, by their keys.
    pub(super) forcing: HashMap<Key, usize>,
    counts: HashMap<Arc<str>, Counts>,
    /// The lost holds of several locks whose guards keep the others until their clients' ttls are over.
    pub(super) left: HashMap<HoldId, Hold>,
    is_closing: bool,
}

/// The holds and requests of one token.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Counts {
    pub(super) locks: usize,
    waiters: usize,
    /// The locks that its waiting requests may get.
    wanted: usize,
}

/// The place of a request in the limits of its token, until it is dropped.
pub(crate) struct Reservation {
    registry: Arc<Registry>,
    owner: Arc<str>,
    requests: usize,
    locks: usize,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.registry.lock().count(&self.owner, |counts| {
            counts.waiters -= self.requests;
            counts.wanted -= self.locks;
        });
    }
}

impl State {
    /// Enters and counts a hold. Returns whether it ends before all others.
    pub(super) fn enter(&mut self, ids: &[HoldId], hold: Hold) -> bool {
        let Some(&id) = ids.first() else { return false };
        let mut locks = 0;
        for (key, token) in hold.kept.locks() {
            locks += weight(key.as_str());
            if hold.kept.known().is_none() {
                self.by_lock.insert((key, token), id);
            }
        }
        self.count(&hold.of.owner.clone(), |counts| counts.locks += locks);
        self.others.extend(ids.iter().skip(1));
        self.holds.insert(id, hold)
    }

    /// Changes the counts of a token, and removes those that are zero.
    pub(super) fn count(&mut self, owner: &Arc<str>, change: impl FnOnce(&mut Counts)) {
        let counts = self.counts.entry(owner.clone()).or_default();
        change(counts);
        if let Counts { locks: 0, waiters: 0, wanted: 0 } = counts {
            self.counts.remove(owner);
        }
    }

    /// Removes a hold, and keeps how it ended.
    pub(super) fn remove(
        &mut self,
        now: Moment,
        id: HoldId,
        ending: Ending,
        names: &Names,
    ) -> Option<Hold> {
        let hold = self.forget(id, now)?;
        let (owner, name) = (hold.of.owner.clone(), hold.name(names).into());
        let ended = EndedHold { owner, name, ending, successor: None };
        // A renewal of its session finds each of several locks by itself.
        for lock in hold.kept.known().into_iter().flat_map(|known| known.packed.locks().skip(1)) {
            self.ended.add_part(now, HoldId::of(lock.id), ended.clone());
        }
        self.ended.add(now, id, ended);
        Some(hold)
    }

    /// Keeps how a ticket and each of its locks have ended, but for those of which an end is kept.
    pub(super) fn end_all(&mut self, now: Moment, ticket: &Ticket, ending: Ending, names: &Names) {
        let first = ticket.tokens().next().map(|(key, _)| names.name_of(key.as_str()));
        let (owner, name) = (ticket.owner.clone(), first.unwrap_or_default().into());
        let ended = EndedHold { owner, name, ending, successor: None };
        for (at, id) in ticket.ids().enumerate() {
            match (self.ended.find(id), at) {
                (Some(_), _) => {}
                (None, 0) => self.ended.add(now, id, ended.clone()),
                (None, _) => self.ended.add_part(now, id, ended.clone()),
            }
        }
    }

    /// Whether a token may have so many more locks here.
    pub(super) fn has_room(&self, owner: &Arc<str>, locks: usize, most: usize) -> bool {
        self.counts.get(owner).is_none_or(|counts| counts.locks + locks <= most)
    }

    /// Removes a hold, of whose end nothing is known.
    pub(super) fn forget(&mut self, id: HoldId, now: Moment) -> Option<Hold> {
        let hold = self.holds.remove(id, now)?;
        let mut locks = 0;
        for (key, token) in hold.kept.locks() {
            locks += weight(key.as_str());
            self.by_lock.remove(&(key, token));
        }
        for lock in hold.kept.known().into_iter().flat_map(|known| known.packed.locks().skip(1)) {
            self.others.remove(&HoldId::of(lock.id));
        }
        self.count(&hold.of.owner.clone(), |counts| counts.locks -= locks);
        Some(hold)
    }

    /// What the holds of this owner have in common, and of this holder if it is needed.
    pub(super) fn common(&mut self, owner: &Arc<str>, holder: Option<&Holder>) -> Arc<Common> {
        let common = Common { owner: owner.clone(), holder: holder.cloned() };
        if let Some(known) = self.commons.get(&common) {
            return known.clone();
        }
        let common = Arc::new(common);
        self.commons.insert(common.clone());
        common
    }

    /// Removes what is of no use any more.
    pub(super) fn sweep(&mut self, now: Moment) {
        self.ended.sweep(now);
        self.sweep_sessions(now);
        self.commons.retain(|common| Arc::strong_count(common) > 1);
    }

    /// The ending of a hold of this key that the library has lost.
    pub(super) fn loss(&self, key: &Key, reason: LostReason) -> Ending {
        match reason {
            LostReason::Taken if self.forcing.contains_key(key) => Ending::Forced,
            reason => Ending::Lost(reason.word()),
        }
    }

    /// Why there is no such hold of this owner.
    pub(super) fn missing(&self, id: HoldId, owner: &str) -> Refusal {
        match self.ended.find(id) {
            Some(hold) if &*hold.owner == owner => hold.refusal(),
            // Also for a hold of another token: no client learns which ids exist.
            _ => Refusal::no_hold(),
        }
    }
}

impl Registry {
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        limits: Limits,
        names: Names,
        is_shared: bool,
    ) -> Arc<Self> {
        let (state, sooner, fewer) = (Mutex::default(), Notify::new(), Notify::new());
        Arc::new(Self { state, clock, limits, is_shared, names, sooner, fewer })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts requests that may wait, and the locks that they may get.
    ///
    /// # Errors
    ///
    /// `Busy` if the token has too many, `Closed` if the service stops.
    pub(crate) fn enter(
        self: &Arc<Self>,
        owner: &Arc<str>,
        requests: usize,
        locks: usize,
    ) -> Result<Reservation, Refusal> {
        let mut state = self.lock();
        if state.is_closing {
            return Err(Refusal::closed());
        }
        let counts = state.counts.get(owner).copied().unwrap_or_default();
        if counts.locks + counts.wanted + locks > self.limits.holds {
            let message = format!("holds: this token has {} locks, the most allowed", counts.locks);
            return Err(Refusal::limit(message, "release locks that are no longer needed"));
        }
        if counts.waiters + requests > self.limits.waiters {
            let message = format!(
                "waiters: {} requests of this token wait, the most allowed",
                counts.waiters
            );
            return Err(Refusal::limit(message, "wait in fewer requests at a time"));
        }
        state.count(owner, |counts| {
            counts.waiters += requests;
            counts.wanted += locks;
        });
        Ok(Reservation { registry: self.clone(), owner: owner.clone(), requests, locks })
    }

    /// Keeps the hold that was granted to the request that arrived at `arrival`.
    ///
    /// # Errors
    ///
    /// `Closed` if the service stops, and releases it: no client knows of it yet.
    pub(crate) fn insert(
        &self,
        owner: &Arc<str>,
        granted: Granted,
        ttl: Duration,
        arrival: Moment,
    ) -> Result<HoldId, Refusal> {
        let (id, now) = (HoldId::random(), self.clock.now());
        let (end, kept) = (keep_until(arrival, now, ttl), Kept::guards(granted));
        let of = self.lock().common(owner, None);
        self.keep(&[id], Hold::new(of, kept, ttl, end, now))?;
        Ok(id)
    }

    /// Keeps a new hold under the first of the ids of its locks. A renewal of its session may have entered them before,
    /// each by itself: returns those entries.
    ///
    /// # Errors
    ///
    /// `Closed` if the service stops.
    pub(super) fn keep(&self, ids: &[HoldId], hold: Hold) -> Result<Vec<Hold>, Refusal> {
        let now = self.clock.now();
        let mut state = self.lock();
        if state.is_closing {
            // Not under the lock: dropping the guards releases them.
            drop(state);
            return Err(Refusal::closed());
        }
        let before = ids.iter().filter_map(|id| state.forget(*id, now)).collect();
        let is_first = state.enter(ids, hold);
        drop(state);
        if is_first {
            self.sooner.notify_one();
        }
        Ok(before)
    }

    /// The names of a hold that this process keeps for this owner; none of another.
    pub(crate) fn names_of(&self, id: HoldId, owner: &str) -> Vec<String> {
        let state = self.lock();
        let hold = state.holds.get(id).filter(|hold| hold.is_kept_for(owner));
        let locks = hold.into_iter().flat_map(|hold| hold.kept.locks());
        locks.map(|(key, _)| self.names.name_of(key.as_str())).collect()
    }

    /// Shows a hold that this process keeps to the client whose request arrived at `arrival`, and renews it if asked to.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Lost` and `Released` for a hold that has ended, `Suspect` and `Closed` for one that cannot
    /// be renewed now. One that its client keeps is found only if it is `fresh`: granted to this request.
    pub(crate) fn look(
        &self,
        id: HoldId,
        owner: &str,
        arrival: Moment,
        renew: bool,
        fresh: bool,
    ) -> Result<HoldStatus, Refusal> {
        let now = self.clock.now();
        let mut state = self.lock();
        let is_closing = state.is_closing;
        let is_asked =
            |hold: &&Hold| hold.is_kept_for(owner) || (fresh && *hold.of.owner == *owner);
        let Some(hold) = state.holds.get(id).filter(is_asked) else {
            return Err(state.missing(id, owner));
        };
        let over = match hold.kept.state() {
            HoldState::Lost(lost) => Some(Ending::Lost(lost.reason.word())),
            _ if now >= hold.end && hold.kept.known().is_none() => Some(Ending::NotRenewed),
            HoldState::Suspect if renew => {
                return Err(Refusal::new(
                    Kind::Suspect,
                    "hold: in doubt until the store confirms it: a clock was set, or the machine paused",
                )
                .with_next_step("do not use the resource; renew again at once"));
            }
            _ => None,
        };
        if let Some(ending) = over {
            // The loop that ends holds removes it, and publishes the event.
            self.sooner.notify_one();
            return Err(ending.refusal(&hold.name(&self.names)));
        }
        if renew {
            if is_closing {
                return Err(Refusal::closed());
            }
            // Never earlier than an earlier answer has promised.
            let end = hold.end.max(keep_until(arrival, arrival, hold.ttl()));
            let status = self.status(id, hold, end, arrival);
            state.holds.set_end(id, end);
            if status.valid_for.is_zero() {
                return Err(Refusal::new(
                    Kind::Unreachable,
                    "hold: the store has not confirmed the lease in time",
                )
                .with_next_step(RENEW_AGAIN_STEP));
            }
            return Ok(status);
        }
        Ok(self.status(id, hold, hold.end, arrival))
    }

    pub(super) fn status(
        &self,
        id: HoldId,
        hold: &Hold,
        end: Moment,
        arrival: Moment,
    ) -> HoldStatus {
        let now = self.clock.now();
        let is_suspect = hold.kept.state() != HoldState::Held;
        let until = hold.kept.valid_until();
        let valid = match hold.kept.known() {
            Some(_) => promised(arrival, until, hold.ttl()),
            None if is_suspect => Duration::ZERO,
            None => valid_for(arrival, end.min(until)),
        };
        // Counted from now: a client that did not read its clock can count from the answer.
        let left = valid.saturating_sub(now.since(arrival));
        let locks = hold.kept.locks().into_iter();
        HoldStatus {
            id: id.to_string(),
            locks: locks.map(|(key, token)| (self.names.name_of(key.as_str()), token)).collect(),
            is_suspect,
            ttl: hold.ttl(),
            valid_for: valid,
            renew_in: left / 3,
            period: hold.kept.period(),
        }
    }

    /// Whether this hold exists, or its end is kept.
    pub(crate) fn knows(&self, id: HoldId) -> bool {
        let state = self.lock();
        state.holds.get(id).is_some() || state.ended.find(id).is_some()
    }

    /// Until when a hold of a ticket is valid, as far as this instance knows.
    pub(crate) fn known_until(&self, id: HoldId) -> Option<Moment> {
        Some(self.lock().holds.get(id)?.kept.known()?.until)
    }

    /// The ticket of a hold, if it exists and this instance has all of its ticket.
    pub(crate) fn ticket(&self, id: HoldId) -> Option<Ticket> {
        self.lock().holds.get(id)?.ticket(id)
    }

    /// All locks that are held, each with its token.
    pub(crate) fn locks(&self) -> Vec<(Key, FencingToken)> {
        self.lock().holds.iter().flat_map(|(_, hold)| hold.kept.locks()).collect()
    }

    /// Refuses all new holds and renewals from now on.
    pub(crate) fn close(&self) {
        self.lock().is_closing = true;
    }

    /// The number of holds.
    pub(crate) fn count(&self) -> usize {
        self.lock().holds.len()
    }

    /// Whether no hold needs this process, and the store has answered all releases.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.lock();
        let goes_on = |hold: &Hold| self.is_shared && hold.kept.known().is_some();
        let is_settled = state.releasing.is_empty() && state.left.is_empty();
        is_settled && state.holds.iter().all(|(_, hold)| goes_on(hold))
    }

    /// Refuses if the service stops.
    ///
    /// # Errors
    ///
    /// `Closed`.
    pub(crate) fn check_open(&self) -> Result<(), Refusal> {
        if self.lock().is_closing { Err(Refusal::closed()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latchwork::Driver;

    /// A registry with a hold of a lock in a new folder.
    async fn held(dir: &tempfile::TempDir) -> (Driver, Arc<Registry>, latchwork::LockManager) {
        let url = format!("file://{}", dir.path().display());
        let locks = latchwork::connect(&url).await.unwrap();
        let driver = Driver::start().unwrap();
        let clock = driver.io().clock().clone();
        let limits = Limits { holds: 10, waiters: 10 };
        let registry = Registry::new(clock.clone(), limits, Names::new(""), false);
        let guard = locks.mutex("a").acquire().await.unwrap();
        let (ttl, now) = (Duration::from_secs(60), clock.now());
        registry.insert(&"me".into(), Granted::One(guard), ttl, now).unwrap();
        (driver, registry, locks)
    }

    /// A request that arrives when the lease is all but over.
    #[tokio::test]
    async fn a_renewal_promises_nothing_of_an_unconfirmed_lease() {
        let dir = tempfile::tempdir().unwrap();
        let (_driver, registry, _locks) = held(&dir).await;
        let (id, until) = {
            let state = registry.lock();
            let (id, hold) = state.holds.iter().next().unwrap();
            (id, hold.kept.valid_until())
        };
        let arrival = |left: u64| Moment::from_nanos(until.as_nanos() - left * 1_000_000);
        assert!(registry.look(id, "me", arrival(1_000), true, false).is_ok());
        let refused = registry.look(id, "me", arrival(1), true, false).unwrap_err();
        assert_eq!(refused.kind, Kind::Unreachable);
        assert_eq!(refused.message, "hold: the store has not confirmed the lease in time");
        assert_eq!(
            refused.step,
            "stop the work before valid_for_ms of the last answer is over; renew again at once"
        );
    }

    /// Clients may rely on them.
    #[tokio::test]
    async fn holds_that_are_left_are_not_released() {
        let dir = tempfile::tempdir().unwrap();
        let (_driver, registry, locks) = held(&dir).await;
        let (of, now) = (registry.lock().common(&"me".into(), None), registry.clock.now());
        let others = Kept::guards(Granted::One(locks.mutex("b").acquire().await.unwrap()));
        let lost = Hold::new(of, others, Duration::from_secs(60), now, now);
        registry.keep_others(HoldId::random(), lost);
        assert!(!registry.is_idle());
        assert_eq!(registry.leave(), (2, 0), "one of them was lost before");
        for name in ["a", "b"] {
            let waited = locks.mutex(name).acquire_within(Duration::from_millis(300)).await;
            assert!(waited.is_err(), "{name} was released");
        }
    }

    /// A repeated request needs the texts of its hold's claims, and each claim may have a value of its own.
    #[test]
    fn holds_with_values_of_their_own_are_not_all_alike() {
        use std::hash::BuildHasher as _;
        let (mut state, owner) = (State::default(), Arc::<str>::from("me"));
        let hash = state.commons.hasher().clone();
        let value =
            |number: usize| Holder::new("me").with(|it| it.value = Some(number.to_string().into()));
        let of = |number| state.common(&owner, Some(&value(number)));
        let all: Vec<_> = (0..100).map(of).collect();
        let hashes: HashSet<_> = all.iter().map(|one| hash.hash_one(one)).collect();
        assert_eq!(hashes.len(), all.len());
    }

    #[tokio::test]
    async fn what_a_token_has_is_counted_to_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let (_driver, registry, _locks) = held(&dir).await;
        let owner: Arc<str> = "me".into();
        let claim = registry.enter(&owner, 0, 9).ok().unwrap();
        let request = registry.enter(&owner, 10, 0).ok().unwrap();
        assert!(registry.enter(&owner, 1, 0).is_err() && registry.enter(&owner, 0, 1).is_err());
        // The claim may outlive its last request for a moment.
        drop(request);
        assert!(registry.enter(&owner, 0, 1).is_err());
        drop(claim);
        assert!(registry.enter(&owner, 10, 9).is_ok());
    }
}
