//! One session for each length of ttl.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use latchwork_core::{BackendError, Io};

use crate::config::ZooKeeperConfig;
use crate::session::{Session, probe};

/// What is proven of a session at any moment: three fifths of it (see [`crate::session`]).
pub(crate) const fn ttl_of(timeout: Duration) -> Duration {
    Duration::from_millis((timeout.as_millis() * 3 / 5) as u64)
}

/// The session that a ttl needs.
const fn timeout_for(ttl: Duration) -> Duration {
    Duration::from_millis((ttl.as_nanos() * 5).div_ceil(3_000_000) as u64)
}

pub(crate) struct Sessions {
    config: Arc<ZooKeeperConfig>,
    io: Io,
    /// The shortest and the longest that the servers grant.
    limits: (Duration, Duration),
    open: Mutex<HashMap<Duration, Arc<Session>>>,
}

impl Sessions {
    /// Finds out which sessions the servers grant.
    pub(crate) async fn find_out(
        config: Arc<ZooKeeperConfig>,
        io: Io,
    ) -> Result<Self, BackendError> {
        let (shortest, longest) =
            tokio::join!(probe(config.clone(), 1, &io), probe(config.clone(), i32::MAX, &io));
        Ok(Self { config, io, limits: (shortest?, longest?), open: Mutex::default() })
    }

    /// The ttls that can be had.
    pub(crate) fn ttls(&self) -> (Duration, Duration) {
        (ttl_of(self.limits.0), ttl_of(self.limits.1))
    }

    /// The session for claims with this ttl. It may be on its way yet.
    pub(crate) fn of(&self, ttl: Duration) -> Arc<Session> {
        let timeout = timeout_for(ttl).clamp(self.limits.0, self.limits.1);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let session = open.entry(timeout);
        let make = || Session::open(&self.config, timeout, &self.io);
        match session {
            std::collections::hash_map::Entry::Occupied(mut entry) => {
                if entry.get().is_over() {
                    entry.insert(make());
                }
                entry.get().clone()
            }
            std::collections::hash_map::Entry::Vacant(entry) => entry.insert(make()).clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_long_enough_for_its_ttl() {
        for ms in [1, 2, 3, 4, 5, 999, 1_000, 1_201, 30_000] {
            let ttl = Duration::from_millis(ms);
            let timeout = timeout_for(ttl);
            assert!(ttl_of(timeout) >= ttl, "{ttl:?} in {timeout:?}");
            assert!(timeout <= ttl * 5 / 3 + Duration::from_millis(1));
        }
    }
}
