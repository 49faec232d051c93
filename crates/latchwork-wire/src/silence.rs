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

#[derive(Debug, Default)]
pub(crate) struct Silence(Mutex<Servers>);

#[derive(Debug, Default)]
struct Servers {
    /// Since when each server, by its name or by one of its numbers, owes an answer.
    owing: HashMap<Endpoint, Moment>,
    /// The address, one of several of a name, to which the last connection was made, and when.
    reached: HashMap<Endpoint, (Endpoint, Moment)>,
}

impl Silence {
    /// Whether a server is silent, or was a moment ago.
    pub(crate) fn has(&self, server: &Endpoint, now: Moment) -> bool {
        self.lock().owing.get(server).is_some_and(|since| {
            let owes = now.since(*since);
            owes >= SILENT && owes < REMEMBERED
        })
    }

    /// A server is asked.
    pub(crate) fn asked(&self, server: Endpoint, now: Moment) {
        let owing = &mut self.lock().owing;
        owing.retain(|_, since| now.since(*since) < REMEMBERED);
        owing.entry(server).or_insert(now);
    }

    /// A server has answered, or had no time to.
    pub(crate) fn forget(&self, server: &Endpoint) {
        self.lock().owing.remove(server);
    }

    /// A connection was made to this address of a server.
    pub(crate) fn reached(&self, server: &Endpoint, address: Option<(Endpoint, Moment)>) {
        let reached = &mut self.lock().reached;
        match address {
            Some(address) => drop(reached.insert(server.clone(), address)),
            None => drop(reached.remove(server)),
        }
    }

    /// On that connection the server has not answered.
    pub(crate) fn unanswered(&self, server: &Endpoint) {
        let servers = &mut *self.lock();
        if let Some((address, since)) = servers.reached.remove(server) {
            servers.owing.insert(address, since);
        }
    }

    /// A server takes connections and does not answer on them: from now on it is silent.
    pub(crate) fn mute(&self, server: Endpoint, now: Moment) {
        self.lock().owing.insert(server, now.minus(SILENT));
    }

    fn lock(&self) -> MutexGuard<'_, Servers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
