//! One event of a lock.

use std::time::Duration;

use latchwork::FencingToken;

use crate::time::wall_millis;

/// A forced release, as its administrator asked for it.
#[derive(Debug, Clone)]
pub(crate) struct Forced {
    /// The name of the administrator's token.
    pub(crate) by: String,
    /// The reason in the administrator's words.
    pub(crate) why: String,
}

/// An event of a lock, or of the service.
#[derive(Debug, Clone)]
pub(crate) struct LockEvent {
    /// Its number: grows by one, from a random number at each start of the service.
    pub(crate) id: u64,
    /// `granted`, `waiting`, `withdrawn`, `released`, `lost`, `handed_over`, `suspect`, `forced`, `unreachable`,
    /// `reachable`, `closing`.
    pub(crate) word: &'static str,
    /// The name of the lock; empty if it is about the service or the store (`closing`, `unreachable`, `reachable`).
    pub(crate) name: String,
    pub(crate) token: Option<FencingToken>,
    /// The token of the hold before, if it was handed over.
    pub(crate) from: Option<FencingToken>,
    /// The holder's text for people. Clients choose it freely.
    pub(crate) holder: Option<String>,
    /// The mode as one word.
    pub(crate) mode: Option<&'static str>,
    /// The cause of a loss, as one word.
    pub(crate) reason: Option<&'static str>,
    /// Who took the lock away, and why.
    pub(crate) forced: Option<Forced>,
    pub(crate) ttl: Option<Duration>,
    /// How long the hold has lasted, or the waiter has waited.
    pub(crate) lasted: Option<Duration>,
    /// The number of waiters now, if the store was asked.
    pub(crate) waiters: Option<usize>,
    /// `service` for a lock of this service; `store` if the store showed it, up to some seconds later.
    pub(crate) by: &'static str,
    /// The time by the wall clock of the service: milliseconds since 1970.
    pub(crate) at_millis: u64,
}

impl LockEvent {
    /// An event of a lock that this service holds or waits for.
    pub(crate) fn new(word: &'static str, name: impl Into<String>) -> Self {
        Self {
            id: 0,
            word,
            name: name.into(),
            token: None,
            from: None,
            holder: None,
            mode: None,
            reason: None,
            forced: None,
            ttl: None,
            lasted: None,
            waiters: None,
            by: "service",
            at_millis: wall_millis(),
        }
    }
}
