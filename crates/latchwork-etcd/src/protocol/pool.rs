//! Leases granted ahead of use, so that a free lock costs one round trip.
//!
//! Only leases come here of which every effect is known: no request that names them is under way.
//! One that nobody takes ends by itself. A claim that takes one keeps it alive in the same flight as
//! the transaction, and counts from that (B4).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use latchwork_store::{Clock, Moment, validity};

/// How many leases of one length are kept.
const MOST: usize = 64;

/// Both clocks, read at the same moment.
///
/// The boot clock stops while a virtual machine is paused, and the server ends leases all the
/// while. Then the wall clock has run ahead of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(super) at: Moment,
    /// Wall minus boot time.
    pub(super) offset: i64,
}

impl Reading {
    pub(crate) fn now(clock: &dyn Clock) -> Self {
        let at = clock.now();
        Self { at, offset: validity::wall_offset(clock.wall(), at) }
    }

    /// The time since an earlier reading; `None` if the machine may have been paused since.
    fn since(self, earlier: Self) -> Option<Duration> {
        let was_paused = validity::was_paused(earlier.offset, self.offset);
        (!was_paused).then(|| self.at.since(earlier.at))
    }

    pub(crate) fn later(self, other: Self) -> Self {
        if other.at > self.at { other } else { self }
    }
}

/// A lease and when it was last known to have its whole ttl.
///
/// A keep-alive costs a server nearly as much as a transaction. So a lease is granted for somewhat
/// longer than a claim needs, and who takes a key soon after the last keep-alive needs no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) id: i64,
    /// What claims count on.
    pub(crate) ttl: Duration,
    /// What the server has granted beyond that.
    pub(crate) spare: Duration,
    pub(crate) alive_at: Reading,
}

impl Lease {
    /// Whether a claim that begins now has its whole ttl without a keep-alive.
    pub(crate) fn lasts(&self, now: Reading) -> bool {
        now.since(self.alive_at).is_some_and(|since| since <= self.spare)
    }

    /// Whether it may be alive, as far as this process knows.
    pub(crate) fn may_be_alive(&self, now: Reading) -> bool {
        now.since(self.alive_at).is_some_and(|since| since <= (self.ttl + self.spare) * 2)
    }

    /// Whether it may end soon, or may have ended.
    fn is_old(&self, now: Reading) -> bool {
        now.since(self.alive_at).is_none_or(|since| since >= self.ttl / 4 * 3)
    }

    /// What a server's word on its ttl leaves to a claim.
    pub(crate) fn usable(&self, granted: Duration) -> Duration {
        granted.saturating_sub(self.spare)
    }
}

/// The seconds beyond those that a claim needs: a tenth, and none for short ones, as etcd counts
/// whole seconds and a dead holder is waited for so much longer.
pub(crate) fn spare(seconds: i64) -> i64 {
    seconds / 10
}

/// Leases by the length that was asked for.
#[derive(Debug, Default)]
pub(crate) struct Pool(Mutex<HashMap<i64, Shelf>>);

#[derive(Debug, Default)]
struct Shelf {
    leases: Vec<Lease>,
    /// Another one is being granted.
    refilling: bool,
}

impl Pool {
    /// Takes the freshest lease of this length, and says whether another one should be granted: its
    /// result is reported to [`Self::refilled`].
    pub(crate) fn take(&self, seconds: i64, now: Reading) -> (Option<Lease>, bool) {
        let mut shelves = self.lock();
        let shelf = shelves.entry(seconds).or_default();
        // One that is nearly over might end on the way.
        shelf.leases.retain(|lease| !lease.is_old(now));
        let taken = shelf.leases.pop();
        // However many want one at the same time, one is granted ahead.
        let refill = shelf.leases.is_empty() && !shelf.refilling;
        shelf.refilling |= refill;
        (taken, refill)
    }

    /// The lease that should be granted was granted, or was not.
    pub(crate) fn refilled(&self, seconds: i64, lease: Option<Lease>) {
        self.lock().entry(seconds).or_default().refilling = false;
        if let Some(lease) = lease {
            self.put(seconds, lease);
        }
    }

    /// Keeps a lease for later; false if there are enough.
    pub(crate) fn put(&self, seconds: i64, lease: Lease) -> bool {
        let mut shelves = self.lock();
        let list = &mut shelves.entry(seconds).or_default().leases;
        if list.len() >= MOST {
            return false;
        }
        // The freshest is last.
        let at = list.partition_point(|other| other.alive_at.at <= lease.alive_at.at);
        list.insert(at, lease);
        true
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<i64, Shelf>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Reading {
        pub(crate) fn of(at: Moment) -> Self {
            Self { at, offset: 0 }
        }
    }

    #[test]
    fn gives_the_freshest_and_none_that_is_nearly_over() {
        let at = |seconds: u64| Reading::of(Moment::from_nanos(seconds * 1_000_000_000));
        let (ttl, spare) = (Duration::from_secs(8), Duration::ZERO);
        let lease = |id, seconds| Lease { id, ttl, spare, alive_at: at(seconds) };
        let pool = Pool::default();
        assert_eq!(pool.take(8, at(0)), (None, true));
        for (id, seconds) in [(1, 0), (3, 5), (2, 3)] {
            assert!(pool.put(8, lease(id, seconds)));
        }
        assert_eq!(pool.take(9, at(6)), (None, true), "of another length");
        assert_eq!(pool.take(8, at(6)), (Some(lease(3, 5)), false));
        assert_eq!(pool.take(8, at(6)), (Some(lease(2, 3)), false), "the first is too old");
        for id in 0..MOST as i64 {
            assert!(pool.put(8, lease(id, 9)));
        }
        assert!(!pool.put(8, lease(99, 9)), "there are enough");
    }

    #[test]
    fn a_lease_outlives_missed_keep_alives_within_its_margin() {
        let at = Moment::from_nanos(1_000_000_000);
        let alive_at = Reading::of(at);
        let (ttl, spare) = (Duration::from_secs(30), Duration::from_secs(3));
        let lease = Lease { id: 1, ttl, spare, alive_at };
        assert!(lease.lasts(Reading::of(at.plus(spare))));
        assert!(!lease.lasts(Reading::of(at.plus(spare + Duration::from_nanos(1)))));
        assert_eq!(lease.usable(ttl + spare), ttl);
        assert_eq!([1, 9, 10, 30, 86_400].map(super::spare), [0, 0, 1, 3, 8_640]);
    }

    /// The boot clock was stopped, and the wall clock ran on.
    #[test]
    fn a_lease_from_before_a_pause_is_not_used() {
        let (alive_at, spare) = (Reading::of(Moment::from_nanos(5)), Duration::from_secs(3));
        let lease = Lease { id: 1, ttl: Duration::from_secs(30), spare, alive_at };
        let after = |pause: Duration| Reading { offset: pause.as_nanos() as i64, ..alive_at };
        let (short, long) = (after(Duration::from_secs(1)), after(Duration::from_millis(1_001)));
        assert!(lease.lasts(short) && !lease.lasts(long));
        let pool = Pool::default();
        pool.put(30, lease);
        assert_eq!(pool.take(30, long).0, None);
        pool.put(30, lease);
        assert_eq!(pool.take(30, short).0, Some(lease));
    }

    #[test]
    fn one_lease_is_requested_ahead_for_all() {
        let (pool, at) = (Pool::default(), Reading::of(Moment::from_nanos(0)));
        let (ttl, spare) = (Duration::from_secs(8), Duration::ZERO);
        let lease = Lease { id: 1, ttl, spare, alive_at: at };
        assert_eq!(pool.take(8, at), (None, true));
        assert_eq!(pool.take(8, at), (None, false), "it is on its way");
        pool.refilled(8, Some(lease));
        assert_eq!(pool.take(8, at), (Some(lease), true));
        pool.refilled(8, None);
        assert_eq!(pool.take(8, at), (None, true), "it was not granted");
    }
}
