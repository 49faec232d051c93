//! Leases granted ahead, so that a free lock costs one trip.
//!
//! Only leases come here of which every effect is known: no request that names them is under way.
//! One that nobody takes ends by itself. Whoever takes one keeps it alive in the same flight as the
//! transaction, and counts from that (B4).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use latchwork_core::Moment;

/// How many leases of one length are kept.
const MOST: usize = 64;

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
    pub(crate) alive_at: Moment,
}

impl Lease {
    /// Whether a claim that begins now has its whole ttl without a keep-alive.
    pub(crate) fn lasts(&self, now: Moment) -> bool {
        now.since(self.alive_at) <= self.spare
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
    /// The lease of this length that is freshest, and whether another one should be granted, which
    /// [`Self::refilled`] has to be told of then.
    pub(crate) fn take(&self, seconds: i64, now: Moment) -> (Option<Lease>, bool) {
        let mut shelves = self.lock();
        let shelf = shelves.entry(seconds).or_default();
        // One that is nearly over might end on the way.
        shelf.leases.retain(|lease| now.since(lease.alive_at) < lease.ttl / 4 * 3);
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
        let at = list.partition_point(|other| other.alive_at <= lease.alive_at);
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

    #[test]
    fn gives_the_freshest_and_none_that_is_nearly_over() {
        let at = |seconds: u64| Moment::from_nanos(seconds * 1_000_000_000);
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
    fn a_lease_lasts_without_a_keep_alive_as_long_as_it_has_time_to_spare() {
        let alive_at = Moment::from_nanos(1_000_000_000);
        let (ttl, spare) = (Duration::from_secs(30), Duration::from_secs(3));
        let lease = Lease { id: 1, ttl, spare, alive_at };
        assert!(lease.lasts(alive_at.plus(spare)));
        assert!(!lease.lasts(alive_at.plus(spare + Duration::from_nanos(1))));
        assert_eq!(lease.usable(ttl + spare), ttl);
        assert_eq!([1, 9, 10, 30, 86_400].map(super::spare), [0, 0, 1, 3, 8_640]);
    }

    #[test]
    fn one_is_granted_ahead_for_all() {
        let (pool, at) = (Pool::default(), Moment::from_nanos(0));
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
