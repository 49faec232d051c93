//! The servers that do not answer.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use latchwork_store::Moment;

use crate::address::Endpoint;

/// A server that has not answered an attempt for so long is silent. It is a little less than the pause
/// after which the next server is tried, so that a client that tries that one already finds this one silent.
pub(crate) const SILENT: Duration = Duration::from_millis(200);
/// A silent server is tried last for so long.
pub(crate) const REMEMBERED: Duration = Duration::from_secs(60);

/// Since when each server, by its name or by one of its numbers, owes an answer.
#[derive(Debug, Default)]
pub(crate) struct Silence(Mutex<HashMap<Endpoint, Moment>>);

impl Silence {
    /// Whether a server is silent, or was a moment ago.
    pub(crate) fn has(&self, server: &Endpoint, now: Moment) -> bool {
        self.lock().get(server).is_some_and(|since| {
            let owes = now.since(*since);
            owes >= SILENT && owes < REMEMBERED
        })
    }

    /// A server is asked.
    pub(crate) fn asked(&self, server: Endpoint, now: Moment) {
        let mut servers = self.lock();
        servers.retain(|_, since| now.since(*since) < REMEMBERED);
        servers.entry(server).or_insert(now);
    }

    /// A server has answered, or had no time to.
    pub(crate) fn forget(&self, server: &Endpoint) {
        self.lock().remove(server);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Endpoint, Moment>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
