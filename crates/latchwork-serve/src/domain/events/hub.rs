//! The last events in order, and their listeners.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tokio::sync::broadcast;
use utoipa::ToSchema;

use crate::time::wall_millis;

/// How many events are kept for clients that connect again.
const KEPT: usize = 4096;

/// And how many bytes of them: a name may be long.
const KEPT_BYTES: usize = 4 * 1024 * 1024;

/// How far a listener may lag behind before it has to begin anew.
const LAG: usize = 1024;

/// One event, as the data of a server-sent event.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct EventView {
    /// Its number: grows by one, and begins anew when the service does.
    pub(crate) id: u64,
    /// `granted`, `waiting`, `withdrawn`, `released`, `lost`, `handed_over`, `suspect`, `closing`.
    pub(crate) event: &'static str,
    /// The name of the lock; empty if it is about the service (`closing`).
    pub(crate) name: String,
    /// The token of the hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<String>,
    /// The token of the hold before, if it was handed over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<String>,
    /// The holder's text for people: anything, so show it as text only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) holder: Option<String>,
    /// `exclusive`, `read`, `write` or `permits`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<&'static str>,
    /// Why it was lost: `not_renewed`, `forced`, `expired`, `taken`, `session_ended`, `max_hold`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<&'static str>,
    /// The holder's ttl in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ttl_ms: Option<u64>,
    /// How long the hold has lasted, or the waiter has waited, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lasted_ms: Option<u64>,
    /// How many wait for the lock now, if the store was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) waiters: Option<usize>,
    /// `service` if it happened to a lock of this service; `store` if it was seen in the store, up to
    /// some seconds later, and may be a release as well as a loss.
    pub(crate) by: &'static str,
    /// When, by the wall clock of the service: milliseconds since 1970.
    pub(crate) at_ms: u64,
}

impl EventView {
    /// An event of a lock that this service holds or waits for.
    pub(crate) fn new(event: &'static str, name: impl Into<String>) -> Self {
        Self {
            id: 0,
            event,
            name: name.into(),
            token: None,
            from: None,
            holder: None,
            mode: None,
            reason: None,
            ttl_ms: None,
            lasted_ms: None,
            waiters: None,
            by: "service",
            at_ms: wall_millis(),
        }
    }
}

/// An event that was told, written once for all listeners.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) id: u64,
    pub(crate) event: &'static str,
    pub(crate) name: String,
    pub(crate) json: String,
}

/// Keeps the last events, and passes each one to all listeners.
#[derive(Debug)]
pub(crate) struct Hub {
    state: Mutex<State>,
    live: broadcast::Sender<Arc<Told>>,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    kept: VecDeque<Arc<Told>>,
    bytes: usize,
}

/// What a listener has missed, and how it goes on.
pub(crate) struct Follow {
    /// The events after the one that it has seen last; `None` if some of them are not kept any more.
    pub(crate) missed: Option<Vec<Arc<Told>>>,
    /// The number of the last event so far.
    pub(crate) last: u64,
    pub(crate) live: broadcast::Receiver<Arc<Told>>,
}

impl Hub {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::default(), live: broadcast::channel(LAG).0 }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells all listeners.
    pub(crate) fn tell(&self, mut event: EventView) {
        let mut state = self.lock();
        state.last += 1;
        event.id = state.last;
        let Ok(json) = serde_json::to_string(&event) else { return };
        let told = Arc::new(Told { id: event.id, event: event.event, name: event.name, json });
        state.bytes += told.json.len();
        state.kept.push_back(told.clone());
        while state.kept.len() > KEPT || state.bytes > KEPT_BYTES {
            let Some(oldest) = state.kept.pop_front() else { break };
            state.bytes -= oldest.json.len();
        }
        // Under the lock, so that all hear them in order. Without listeners it goes nowhere.
        let _ = self.live.send(told);
    }

    /// Follows the events after number `seen`, or from now on.
    pub(crate) fn follow(&self, seen: Option<u64>) -> Follow {
        let state = self.lock();
        let live = self.live.subscribe();
        let missed = match seen {
            None => Some(Vec::new()),
            // Of an earlier start of the service.
            Some(seen) if seen > state.last => None,
            Some(seen) => {
                let first = state.kept.front().map_or(state.last + 1, |told| told.id);
                let after = || state.kept.iter().filter(|told| told.id > seen).cloned().collect();
                (seen + 1 >= first).then(after)
            }
        };
        Follow { missed, last: state.last, live }
    }

    /// The number of the last event.
    pub(crate) fn last(&self) -> u64 {
        self.lock().last
    }

    /// How many listen.
    pub(crate) fn listeners(&self) -> usize {
        self.live.receiver_count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(missed: Option<Vec<Arc<Told>>>) -> Option<Vec<String>> {
        missed.map(|told| told.iter().map(|told| told.name.clone()).collect())
    }

    #[test]
    fn a_listener_that_returns_gets_what_it_missed() {
        let hub = Hub::new();
        for name in ["a", "b", "c"] {
            hub.tell(EventView::new("granted", name));
        }
        assert_eq!(names(hub.follow(Some(1)).missed).unwrap(), ["b", "c"]);
        assert_eq!(names(hub.follow(Some(3)).missed).unwrap(), [""; 0]);
        assert_eq!(names(hub.follow(None).missed).unwrap(), [""; 0]);
        assert!(hub.follow(Some(4)).missed.is_none(), "of another start");
    }

    #[test]
    fn a_gap_is_told() {
        let hub = Hub::new();
        (0..KEPT + 5).for_each(|_| hub.tell(EventView::new("granted", "a")));
        assert!(hub.follow(Some(4)).missed.is_none());
        assert_eq!(hub.follow(Some(5)).missed.unwrap().len(), KEPT);
    }

    #[test]
    fn long_names_fill_no_memory() {
        let (hub, name) = (Hub::new(), "x".repeat(64 * 1024));
        (0..KEPT).for_each(|_| hub.tell(EventView::new("granted", &*name)));
        let state = hub.lock();
        assert!(state.kept.len() < 70, "{}", state.kept.len());
        let bytes: usize = state.kept.iter().map(|told| told.json.len()).sum();
        assert!(bytes == state.bytes && bytes <= KEPT_BYTES, "{bytes}");
    }
}
