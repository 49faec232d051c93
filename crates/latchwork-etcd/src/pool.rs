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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) id: i64,
    pub(crate) ttl: Duration,
    pub(crate) alive_at: Moment,
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
        let lease = |id, seconds| Lease { id, ttl: Duration::from_secs(8), alive_at: at(seconds) };
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
    fn one_is_granted_ahead_for_all() {
        let (pool, at) = (Pool::default(), Moment::from_nanos(0));
        let lease = Lease { id: 1, ttl: Duration::from_secs(8), alive_at: at };
        assert_eq!(pool.take(8, at), (None, true));
        assert_eq!(pool.take(8, at), (None, false), "it is on its way");
        pool.refilled(8, Some(lease));
        assert_eq!(pool.take(8, at), (Some(lease), true));
        pool.refilled(8, None);
        assert_eq!(pool.take(8, at), (None, true), "it was not granted");
    }
}
