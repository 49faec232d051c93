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

#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// By the length that was asked for.
    leases: Mutex<HashMap<i64, Vec<Lease>>>,
}

impl Pool {
    /// The lease of this length that is freshest, and whether another one should be granted.
    pub(crate) fn take(&self, seconds: i64, now: Moment) -> (Option<Lease>, bool) {
        let mut leases = self.lock();
        let Some(list) = leases.get_mut(&seconds) else { return (None, true) };
        // One that is nearly over might end on the way.
        list.retain(|lease| now.since(lease.alive_at) < lease.ttl / 4 * 3);
        let taken = list.pop();
        let refill = list.is_empty();
        if refill {
            leases.remove(&seconds);
        }
        (taken, refill)
    }

    /// Keeps a lease for later; false if there are enough.
    pub(crate) fn put(&self, seconds: i64, lease: Lease) -> bool {
        let mut leases = self.lock();
        let list = leases.entry(seconds).or_default();
        if list.len() >= MOST {
            return false;
        }
        // The freshest is last.
        let at = list.partition_point(|other| other.alive_at <= lease.alive_at);
        list.insert(at, lease);
        true
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<i64, Vec<Lease>>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
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
        assert_eq!(pool.take(9, at(6)).0, None, "of another length");
        assert_eq!(pool.take(8, at(6)), (Some(lease(3, 5)), false));
        assert_eq!(pool.take(8, at(6)), (Some(lease(2, 3)), true), "the first is too old");
        for id in 0..MOST as i64 {
            assert!(pool.put(8, lease(id, 9)));
        }
        assert!(!pool.put(8, lease(99, 9)), "there are enough");
    }
}
