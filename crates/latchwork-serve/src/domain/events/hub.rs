//! The last events in order, and their listeners.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::broadcast;

use super::event::LockEvent;

/// The most events that are kept for clients that connect again.
const KEPT: usize = 4096;

/// The most bytes of them: a name may be long.
const KEPT_BYTES: usize = 4 * 1024 * 1024;

/// The most events that a listener may lag behind before it has to start again.
const LAG: usize = 1024;

/// An event as text, written once for all listeners.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) id: u64,
    pub(crate) word: &'static str,
    pub(crate) name: String,
    pub(crate) text: String,
}

/// Writes an event as listeners read it; `None` if it cannot be written.
pub(crate) type Writer = fn(&LockEvent) -> Option<String>;

/// Keeps the last events, and passes each one to all listeners.
#[derive(Debug)]
pub(crate) struct Hub {
    state: Mutex<State>,
    live: broadcast::Sender<Arc<Message>>,
    write: Writer,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    kept: VecDeque<Arc<Message>>,
    bytes: usize,
}

/// The events that a listener has missed, and those that follow.
pub(crate) struct Subscription {
    /// The events after the last one that it has seen; `None` if some of them are no longer kept.
    pub(crate) missed: Option<Vec<Arc<Message>>>,
    /// The number of the last event so far.
    pub(crate) last: u64,
    pub(crate) live: broadcast::Receiver<Arc<Message>>,
}

impl Hub {
    pub(crate) fn new(write: Writer) -> Self {
        Self { state: Mutex::default(), live: broadcast::channel(LAG).0, write }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes an event to all listeners.
    pub(crate) fn publish(&self, mut event: LockEvent) {
        let mut state = self.lock();
        state.last += 1;
        event.id = state.last;
        let Some(text) = (self.write)(&event) else { return };
        let message = Arc::new(Message { id: event.id, word: event.word, name: event.name, text });
        state.bytes += message.text.len();
        state.kept.push_back(message.clone());
        while state.kept.len() > KEPT || state.bytes > KEPT_BYTES {
            let Some(oldest) = state.kept.pop_front() else { break };
            state.bytes -= oldest.text.len();
        }
        // Under the lock, so that all listeners get the events in order. Fails if there are none.
        let _ = self.live.send(message);
    }

    /// Follows the events after number `seen`, or from now on.
    pub(crate) fn subscribe(&self, seen: Option<u64>) -> Subscription {
        let state = self.lock();
        let live = self.live.subscribe();
        let missed = match seen {
            None => Some(Vec::new()),
            // The number is from an earlier start of the service.
            Some(seen) if seen > state.last => None,
            Some(seen) => {
                let first = state.kept.front().map_or(state.last + 1, |message| message.id);
                let after =
                    || state.kept.iter().filter(|message| message.id > seen).cloned().collect();
                (seen + 1 >= first).then(after)
            }
        };
        Subscription { missed, last: state.last, live }
    }

    /// The number of the last event.
    pub(crate) fn last(&self) -> u64 {
        self.lock().last
    }

    /// The number of listeners.
    pub(crate) fn listeners(&self) -> usize {
        self.live.receiver_count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub() -> Hub {
        Hub::new(|event| Some(format!("{} {}", event.word, event.name)))
    }

    fn names(missed: Option<Vec<Arc<Message>>>) -> Option<Vec<String>> {
        missed.map(|messages| messages.iter().map(|message| message.name.clone()).collect())
    }

    #[test]
    fn a_listener_that_returns_gets_what_it_missed() {
        let hub = hub();
        for name in ["a", "b", "c"] {
            hub.publish(LockEvent::new("granted", name));
        }
        assert_eq!(names(hub.subscribe(Some(1)).missed).unwrap(), ["b", "c"]);
        assert_eq!(names(hub.subscribe(Some(3)).missed).unwrap(), [""; 0]);
        assert_eq!(names(hub.subscribe(None).missed).unwrap(), [""; 0]);
        assert!(hub.subscribe(Some(4)).missed.is_none(), "of another start");
    }

    #[test]
    fn a_gap_is_told() {
        let hub = hub();
        (0..KEPT + 5).for_each(|_| hub.publish(LockEvent::new("granted", "a")));
        assert!(hub.subscribe(Some(4)).missed.is_none());
        assert_eq!(hub.subscribe(Some(5)).missed.unwrap().len(), KEPT);
    }

    #[test]
    fn long_names_fill_no_memory() {
        let (hub, name) = (hub(), "x".repeat(64 * 1024));
        (0..KEPT).for_each(|_| hub.publish(LockEvent::new("granted", &*name)));
        let state = hub.lock();
        assert!(state.kept.len() < 70, "{}", state.kept.len());
        let bytes: usize = state.kept.iter().map(|message| message.text.len()).sum();
        assert!(bytes == state.bytes && bytes <= KEPT_BYTES, "{bytes}");
    }
}
