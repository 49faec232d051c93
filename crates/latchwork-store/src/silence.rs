//! The servers that were silent a moment ago.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Moment;
use crate::kit::address::Endpoint;

/// A server that was silent is tried last for so long.
pub(crate) const REMEMBERED: Duration = Duration::from_secs(60);

/// When each server, by its name or by one of its numbers, was silent last.
#[derive(Debug, Default)]
pub(crate) struct Silence(Mutex<HashMap<Endpoint, Moment>>);

impl Silence {
    /// Whether a server was silent a moment ago.
    pub(crate) fn has(&self, server: &Endpoint, now: Moment) -> bool {
        self.lock().get(server).is_some_and(|since| now.since(*since) < REMEMBERED)
    }

    /// A server does not answer.
    pub(crate) fn note(&self, server: Endpoint, now: Moment) {
        let mut servers = self.lock();
        servers.retain(|_, since| now.since(*since) < REMEMBERED);
        servers.insert(server, now);
    }

    /// A server has answered.
    pub(crate) fn forget(&self, server: &Endpoint) {
        self.lock().remove(server);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Endpoint, Moment>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
