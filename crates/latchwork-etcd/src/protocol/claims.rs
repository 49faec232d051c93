//! This client's claims: the lease of each, and its create revision.

use std::collections::HashMap;
use std::num::NonZeroI64;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use latchwork_store::{Blocked, ClaimId, Key, Moment};

use crate::protocol::left::LeftClaims;
use crate::protocol::names;
use crate::protocol::pool::{Lease, Reading};
use crate::protocol::queue::Target;
use crate::server::watch::Listener;
use crate::shrink;

/// A claim that has, or may have, a place in the store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnClaim {
    pub(crate) lease: Lease,
    /// The length that was asked for.
    pub(crate) seconds: i64,
    /// The create revision of its key, once an answer told it.
    pub(crate) revision: Option<NonZeroI64>,
    /// Its rank in the queue, from its first place on.
    pub(crate) rank: Option<NonZeroI64>,
    /// Whether its place was found to match those ahead. It keeps its limit from then on.
    pub(crate) matches: bool,
    /// Whether an answer said that it holds the key.
    pub(crate) granted: bool,
    /// How many requests that may change its key have no answer yet, or never got one. Such a
    /// request may still come, so the lease must be revoked: a put under it fails from then on.
    pub(crate) unsure: u32,
    /// Whether another process was granted the lease, and may use it again: then it is never revoked here for what is
    /// unsure, and no other claim takes it.
    pub(crate) is_adopted: bool,
}

/// The last answer to a claim that is far behind. While the places that it waits for remain, it gets
/// the same answer.
#[derive(Debug, Clone)]
pub(crate) struct LastAnswer {
    pub(crate) behind: Vec<Target>,
    /// The key of the first in queue.
    pub(crate) first: Vec<u8>,
    /// Of permits: when the limit beside the queue was changed; 0 if there was none.
    pub(crate) limit_changed: Option<i64>,
    pub(crate) blocked: Blocked,
}

#[derive(Debug)]
struct Entry {
    own: OwnClaim,
    far: Option<Box<LastAnswer>>,
    /// The lock that it holds, and since when.
    held: Option<(Moment, Key)>,
    /// Ends its watch when it is dropped.
    watch: Option<Listener>,
    /// Any process may renew and release it, so this one may never learn of its end: its place is remembered while
    /// this process renews it.
    is_left: bool,
}

impl Entry {
    fn new(own: OwnClaim, is_left: bool) -> Self {
        Self { own, far: None, held: None, watch: None, is_left }
    }

    /// Whether it is no more than a claim of any process.
    fn is_left_alone(&self) -> bool {
        self.is_left && self.far.is_none() && self.held.is_none() && self.watch.is_none()
    }

    /// The key that it holds, and its create revision.
    fn place(&self) -> Option<(Vec<u8>, NonZeroI64)> {
        let (_, lock) = self.held.as_ref()?;
        Some((names::claim(&names::queue(lock), self.own.lease.id), self.own.revision?))
    }
}

#[derive(Debug, Default)]
struct Entries {
    /// Boxed, for a map has room for up to twice as many as are in it.
    kept: HashMap<ClaimId, Box<Entry>>,
    /// Those that are no more than claims of any process, if they fit.
    left: LeftClaims,
}

impl Entries {
    fn len(&self) -> usize {
        self.kept.len() + self.left.len()
    }

    /// A claim, and whether any process may renew and release it.
    fn get(&self, id: ClaimId) -> Option<(OwnClaim, bool)> {
        match self.kept.get(&id) {
            Some(entry) => Some((entry.own, entry.is_left)),
            None => self.left.get(id).map(|own| (own, true)),
        }
    }

    fn change(&mut self, id: ClaimId, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.kept.get_mut(&id) {
            change(entry);
            if entry.is_left_alone() && self.left.put(id, &entry.own) {
                self.kept.remove(&id);
                shrink::give_back(&mut self.kept);
            }
        } else if let Some(own) = self.left.get(id) {
            let mut entry = Entry::new(own, true);
            change(&mut entry);
            if !entry.is_left_alone() || !self.left.put(id, &entry.own) {
                self.left.remove(id);
                self.kept.insert(id, Box::new(entry));
            }
        }
    }

    fn remove(&mut self, id: ClaimId) {
        match self.kept.remove(&id) {
            Some(_) => shrink::give_back(&mut self.kept),
            None => self.left.remove(id),
        }
    }

    /// Removes the claims of any process that this one has not renewed for so long that their leases may have ended.
    fn remove_stale(&mut self, now: Reading) {
        self.kept.retain(|_, entry| !entry.is_left || entry.own.lease.may_be_alive(now));
        shrink::give_back(&mut self.kept);
        self.left.retain(|own| own.lease.may_be_alive(now));
    }
}

/// With fewer entries none is looked through.
const FEW: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Claims {
    entries: Mutex<Entries>,
    /// With so many entries, stale ones are removed.
    crowd: AtomicUsize,
}

impl Claims {
    pub(crate) fn get(&self, id: ClaimId) -> Option<OwnClaim> {
        self.lock().get(id).map(|(own, _)| own)
    }

    /// A request is sent that may change the key of this claim.
    pub(crate) fn begin(&self, id: ClaimId, lease: Lease, seconds: i64) {
        let fresh = || {
            let (revision, rank, is_adopted) = (None, None, false);
            let (matches, granted, unsure) = (false, false, 0);
            OwnClaim { lease, seconds, revision, rank, matches, granted, unsure, is_adopted }
        };
        let mut claims = self.lock();
        self.clear_up(&mut claims, lease.alive_at);
        if claims.get(id).is_none() {
            claims.kept.insert(id, Box::new(Entry::new(fresh(), false)));
        }
        claims.change(id, |entry| entry.own.unsure += 1);
    }

    /// Any process may renew and release this claim from now on.
    pub(crate) fn leave(&self, id: ClaimId) {
        self.lock().change(id, |entry| {
            (entry.held, entry.watch, entry.is_left) = (None, None, true);
        });
    }

    /// Remembers where the store has a claim that another process may have acquired.
    pub(crate) fn adopt(&self, id: ClaimId, lease: Lease, revision: i64, rank: i64) {
        let mut claims = self.lock();
        self.clear_up(&mut claims, lease.alive_at);
        if claims.get(id).is_none() {
            let (revision, rank) = (NonZeroI64::new(revision), NonZeroI64::new(rank));
            let (seconds, matches, granted, unsure, is_adopted) = (0, true, true, 0, true);
            let own =
                OwnClaim { lease, seconds, revision, rank, matches, granted, unsure, is_adopted };
            if !claims.left.put(id, &own) {
                claims.kept.insert(id, Box::new(Entry::new(own, true)));
            }
        }
    }

    fn clear_up(&self, claims: &mut Entries, now: Reading) {
        if claims.len() >= self.crowd.load(Ordering::Relaxed).max(FEW) {
            claims.remove_stale(now);
            self.crowd.store(2 * claims.len(), Ordering::Relaxed);
        }
    }

    /// A request was answered: it did this, or certainly nothing.
    pub(crate) fn answered(&self, id: ClaimId, lease: i64, change: impl FnOnce(&mut OwnClaim)) {
        self.change(id, lease, |entry| {
            entry.own.unsure = entry.own.unsure.saturating_sub(1);
            change(&mut entry.own);
        });
    }

    /// Notes that the place of a claim matches those ahead.
    pub(crate) fn matched(&self, id: ClaimId, lease: i64) {
        self.change(id, lease, |entry| entry.own.matches = true);
    }

    /// Returns the last answer to a claim that is far behind.
    pub(crate) fn far(&self, id: ClaimId) -> Option<LastAnswer> {
        self.lock().kept.get(&id).and_then(|entry| entry.far.as_deref().cloned())
    }

    /// Notes that a claim got this answer, or is no longer far behind.
    pub(crate) fn set_far(&self, id: ClaimId, lease: i64, far: Option<LastAnswer>) {
        self.change(id, lease, |entry| entry.far = far.map(Box::new));
    }

    /// The lease of this claim had its whole ttl at this moment.
    pub(crate) fn alive(&self, id: ClaimId, lease: i64, ttl: Duration, at: Reading) {
        self.change(id, lease, |Entry { own, .. }| {
            own.lease.ttl = ttl;
            own.lease.alive_at = own.lease.alive_at.later(at);
        });
    }

    /// The claim with this lease holds this lock since now at the latest. Its key may be watched
    /// already.
    pub(crate) fn granted(
        &self,
        id: ClaimId,
        lease: i64,
        lock: Key,
        now: Moment,
        watch: Option<Listener>,
    ) {
        self.change(id, lease, |entry| {
            entry.own.granted = true;
            entry.far = None;
            entry.held.get_or_insert((now, lock));
            if entry.watch.is_none() {
                entry.watch = watch;
            }
        });
    }

    /// Notes that the claim is being released: its end is no news to anybody.
    pub(crate) fn let_go(&self, id: ClaimId) {
        self.lock().change(id, |entry| (entry.held, entry.watch) = (None, None));
    }

    /// Forgets a claim that has this lease.
    pub(crate) fn forget(&self, id: ClaimId, lease: i64) -> Option<OwnClaim> {
        let mut claims = self.lock();
        let (own, _) = claims.get(id).filter(|(own, _)| own.lease.id == lease)?;
        claims.remove(id);
        Some(own)
    }

    /// Has those watched that have held their keys since before a moment and are not watched; says
    /// whether there are younger ones.
    pub(crate) fn watch(
        &self,
        since: Moment,
        watch: impl Fn(Vec<u8>, ClaimId, NonZeroI64) -> Listener,
    ) -> bool {
        let mut younger = false;
        for (id, entry) in self.lock().kept.iter_mut().filter(|(_, entry)| entry.watch.is_none()) {
            let Some((at, _)) = &entry.held else { continue };
            if *at > since {
                younger = true;
                continue;
            }
            entry.watch = entry.place().map(|(key, revision)| watch(key, *id, revision));
        }
        younger
    }

    /// These are watched no more.
    pub(crate) fn unwatched(&self, ids: &[ClaimId]) {
        let mut claims = self.lock();
        for id in ids {
            claims.change(*id, |entry| entry.watch = None);
        }
    }

    /// This one is watched no more, if it is by this listener.
    pub(crate) fn unwatched_by(&self, listener: i64, id: ClaimId) {
        self.lock().change(id, |entry| {
            entry.watch.take_if(|watch| watch.id() == listener);
        });
    }

    /// The key that this claim holds, its create revision, and who listens to its watch.
    pub(crate) fn watched_place(&self, id: ClaimId) -> Option<(Vec<u8>, NonZeroI64, i64)> {
        let claims = self.lock();
        let entry = claims.kept.get(&id)?;
        let (key, revision) = entry.place()?;
        Some((key, revision, entry.watch.as_ref()?.id()))
    }

    /// The key that was created at this revision, if a claim holds it.
    pub(crate) fn key_created_at(&self, revision: i64) -> Option<Vec<u8>> {
        let claims = self.lock();
        let mut places = claims
            .kept
            .values()
            .filter(|entry| entry.own.revision.is_some_and(|own| own.get() == revision));
        places.find_map(|entry| entry.place()).map(|(key, _)| key)
    }

    /// Ends all watches.
    pub(crate) fn close(&self) {
        *self.lock() = Entries::default();
    }

    fn change(&self, id: ClaimId, lease: i64, change: impl FnOnce(&mut Entry)) {
        self.lock().change(id, |entry| {
            if entry.own.lease.id == lease {
                change(entry);
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    /// A claim that has held the lock `k` since then, under this lease.
    fn held(claims: &Claims, lease: i64, since: Moment) -> ClaimId {
        let id = ClaimId::random();
        let (ttl, spare) = (Duration::from_secs(9), Duration::ZERO);
        let alive_at = Reading::of(since);
        claims.begin(id, Lease { id: lease, ttl, spare, alive_at }, 9);
        claims.answered(id, lease, |own| own.revision = NonZeroI64::new(7));
        claims.matched(id, lease);
        claims.granted(id, lease, Key::new("k").unwrap(), since, None);
        id
    }

    /// Another process may have ended it, and this one would never learn of that.
    #[test]
    fn h439_a_hold_that_others_keep_is_not_remembered_for_ever() {
        let claims = Claims::default();
        for number in 0..10_000 {
            let id = held(&claims, number, at(number as u64 * 100));
            claims.leave(id);
            let own = claims.get(id).unwrap();
            assert!(own.granted && own.revision.is_some(), "it is renewed without a search");
        }
        // Each has a lease of 9 s, and one is begun every 100 ms.
        let count = claims.lock().len();
        assert!(count < 1_000, "{count}");
        let kept = held(&claims, 1 << 20, at(0));
        for number in 0..1_000 {
            let lease = Lease { id: number, ..claims.get(kept).unwrap().lease };
            let alive_at = Reading::of(at(1_000_000 + number as u64 * 100));
            claims.adopt(ClaimId::random(), Lease { alive_at, ..lease }, 7, 7);
        }
        assert!(claims.lock().len() < 1_000);
        assert!(claims.get(kept).is_some(), "a hold of this process stays");
    }

    /// The put of its first try may still come, under a lease that the release must end then.
    #[test]
    fn h537_a_left_claim_keeps_its_request_without_an_answer() {
        let claims = Claims::default();
        let (sure, unsure) = (held(&claims, 1, at(0)), held(&claims, 2, at(0)));
        claims.begin(unsure, claims.get(unsure).unwrap().lease, 9);
        for id in [sure, unsure] {
            claims.leave(id);
        }
        let count = || {
            let claims = claims.lock();
            (claims.kept.len(), claims.left.len())
        };
        assert_eq!(count(), (0, 2));
        let of = |id| claims.get(id).map(|own| own.unsure);
        assert_eq!((of(sure), of(unsure)), (Some(0), Some(1)));
        // A release is a request, too.
        claims.begin(sure, claims.get(sure).unwrap().lease, 9);
        claims.begin(unsure, claims.get(unsure).unwrap().lease, 9);
        claims.answered(unsure, 2, |_| {});
        assert_eq!((of(sure), of(unsure)), (Some(1), Some(1)));
        for _ in 0..9 {
            claims.begin(unsure, claims.get(unsure).unwrap().lease, 9);
        }
        assert_eq!((of(unsure), count()), (Some(10), (1, 1)), "it did not fit");
        assert!(claims.forget(sure, 2).is_none() && claims.forget(sure, 1).is_some());
        assert!(claims.get(sure).is_none());
    }

    /// As a guard does that the hold was lent to.
    #[test]
    fn a_left_claim_can_be_watched_again() {
        let claims = Claims::default();
        let id = held(&claims, 0x1f, at(0));
        let count = || {
            let watched = Cell::new(0);
            claims.watch(at(1_000), |_, _, _| {
                watched.set(watched.get() + 1);
                Listener::of_nothing()
            });
            watched.get()
        };
        claims.leave(id);
        assert_eq!((count(), claims.lock().left.len()), (0, 1));
        claims.granted(id, 0x1f, Key::new("k").unwrap(), at(500), None);
        assert_eq!((count(), claims.lock().left.len()), (1, 0));
        claims.leave(id);
        assert_eq!((count(), claims.lock().left.len()), (0, 1));
    }

    #[test]
    fn a_claim_is_watched_once_until_its_release() {
        let (claims, asked) = (Claims::default(), RefCell::new(Vec::new()));
        let watch = |since| {
            let younger = claims.watch(since, |key, id, revision| {
                asked.borrow_mut().push((String::from_utf8(key).unwrap(), id, revision.get()));
                Listener::of_nothing()
            });
            (asked.take(), younger)
        };
        let (first, second) = (held(&claims, 0x1f, at(0)), held(&claims, 0x2f, at(100)));
        assert_eq!(watch(at(50)), (vec![("k/1f".into(), first, 7)], true));
        assert_eq!(watch(at(100)), (vec![("k/2f".into(), second, 7)], false));
        assert_eq!(watch(at(200)), (vec![], false), "all are watched");
        claims.unwatched(&[first]);
        assert_eq!(watch(at(200)).0.len(), 1, "its watch had ended");
        claims.unwatched_by(2, first);
        assert_eq!(watch(at(200)).0.len(), 0, "that was another watch");
        claims.unwatched_by(1, first);
        assert_eq!(watch(at(200)).0.len(), 1);
        claims.unwatched(&[first, second]);
        claims.let_go(second);
        assert_eq!(watch(at(200)), (vec![("k/1f".into(), first, 7)], false));
        claims.let_go(first);
        assert!(claims.lock().kept.values().all(|entry| entry.watch.is_none()));
        assert_eq!(watch(at(200)), (vec![], false), "they are being released");
    }
}
