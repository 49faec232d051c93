//! The last events in order, and their listeners.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use super::event::LockEvent;
use super::readers::Readers;

/// The most events that are kept for clients that connect again, or read slowly.
const KEPT: usize = 4096;

/// The most bytes of them: a name may be long.
const KEPT_BYTES: usize = 4 * 1024 * 1024;

/// The most bytes of losses that wait to be sent: names may be long.
const LOSSES_BYTES: usize = 4 << 20;

/// A loss to send, and its place in the bytes that may wait.
pub(crate) type LossToSend = (Arc<Message>, OwnedSemaphorePermit);

/// Where losses are sent, too.
#[derive(Debug)]
struct Losses {
    queue: mpsc::Sender<LossToSend>,
    /// One permit for each byte.
    room: Arc<Semaphore>,
}

impl Losses {
    /// Whether there was room.
    fn send(&self, loss: &Arc<Message>) -> bool {
        let bytes = u32::try_from(loss.bytes()).unwrap_or(u32::MAX);
        let place = self.room.clone().try_acquire_many_owned(bytes);
        place.is_ok_and(|place| self.queue.try_send((loss.clone(), place)).is_ok())
    }
}

/// An event as text, written once for all listeners.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) id: u64,
    pub(crate) word: &'static str,
    pub(crate) name: String,
    pub(crate) text: String,
}

impl Message {
    fn bytes(&self) -> usize {
        self.name.len() + self.text.len()
    }
}

/// Writes an event as listeners read it; `None` if it cannot be written.
pub(crate) type Writer = fn(&LockEvent) -> Option<String>;

/// Keeps the last events for all listeners. A listener keeps only its place among them, so one that does not
/// read costs nothing.
#[derive(Debug)]
pub(crate) struct Hub {
    state: Mutex<State>,
    /// The number of the last event.
    last: watch::Sender<u64>,
    write: Writer,
    /// The requests that wait for a change of one lock.
    pub(crate) readers: Readers,
    /// Where losses are sent, too.
    losses: Option<Losses>,
}

#[derive(Debug, Default)]
struct State {
    kept: VecDeque<Arc<Message>>,
    bytes: usize,
}

/// What a listener reads next.
#[derive(Debug)]
pub(crate) enum Next {
    Event(Arc<Message>),
    /// Some events are no longer kept, or the place was among the events of another service. All that are kept follow.
    Missed,
}

/// A place among the events.
pub(crate) struct Listener {
    hub: Arc<Hub>,
    seen: u64,
    last: watch::Receiver<u64>,
}

impl Listener {
    /// Waits for the next event. May be dropped at any time: what it has not returned is read by the next call.
    pub(crate) async fn next(&mut self) -> Next {
        loop {
            let last = *self.last.borrow_and_update();
            if let Some((next, seen)) = self.hub.after(self.seen, last) {
                self.seen = seen;
                return next;
            }
            // The sender lives as long as this listener.
            let _ = self.last.changed().await;
        }
    }
}

impl Hub {
    pub(crate) fn new(write: Writer) -> Self {
        // Random, so that a number of another service, or of another start of this one, is none of this one's.
        // JSON carries numbers of up to 53 bits.
        let start = RandomState::new().hash_one(()) >> 12;
        let (state, last) = (Mutex::default(), watch::Sender::new(start));
        Self { state, last, write, readers: Readers::default(), losses: None }
    }

    /// The same, which sends losses also there, and drops them while there is no room.
    pub(crate) fn with_losses(self, queue: Option<mpsc::Sender<LossToSend>>) -> Self {
        let room = Arc::new(Semaphore::new(LOSSES_BYTES));
        let losses = queue.map(|queue| Losses { queue, room });
        Self { losses, ..self }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes an event to all listeners.
    pub(crate) fn publish(&self, mut event: LockEvent) {
        // Held to the end, so that all listeners get the events in order.
        let mut state = self.lock();
        event.id = self.last() + 1;
        // Without a number: a listener takes one that is not kept for a gap.
        let Some(text) = (self.write)(&event) else { return };
        let message = Message { id: event.id, word: event.word, name: event.name, text };
        state.bytes += message.bytes();
        let message = Arc::new(message);
        if let Some(losses) = self.losses.as_ref().filter(|_| message.word == "lost")
            && !losses.send(&message)
        {
            crate::metrics::webhook("dropped");
        }
        state.kept.push_back(message.clone());
        while state.kept.len() > KEPT || state.bytes > KEPT_BYTES {
            let Some(oldest) = state.kept.pop_front() else { break };
            state.bytes -= oldest.bytes();
        }
        self.last.send_replace(event.id);
        drop(state);
        self.readers.wake(&message.name);
    }

    /// Follows the events after number `seen`, or from now on.
    pub(crate) fn listen(self: &Arc<Self>, seen: Option<u64>) -> Listener {
        let last = self.last.subscribe();
        let seen = seen.unwrap_or_else(|| *last.borrow());
        Listener { hub: self.clone(), seen, last }
    }

    /// What follows number `seen`, and the place after it; `None` if nothing does yet.
    fn after(&self, seen: u64, last: u64) -> Option<(Next, u64)> {
        if seen == last {
            return None;
        }
        let state = self.lock();
        let at = state.kept.partition_point(|message| message.id <= seen);
        Some(match state.kept.get(at) {
            Some(message) if message.id == seen.wrapping_add(1) => {
                (Next::Event(message.clone()), message.id)
            }
            _ => (Next::Missed, state.kept.front().map_or(last, |message| message.id - 1)),
        })
    }

    /// The number of the last event.
    pub(crate) fn last(&self) -> u64 {
        *self.last.borrow()
    }

    /// The number of listeners.
    pub(crate) fn listeners(&self) -> usize {
        self.last.receiver_count()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn hub() -> Arc<Hub> {
        Arc::new(Hub::new(|event| Some(format!("{} {}", event.word, event.name))))
    }

    /// The names that a listener gets at once; `reset` where events are missing.
    fn names(mut listener: Listener) -> Vec<String> {
        std::iter::from_fn(|| listener.next().now_or_never())
            .map(|next| match next {
                Next::Event(message) => message.name.clone(),
                Next::Missed => "reset".to_owned(),
            })
            .collect()
    }

    #[test]
    fn a_listener_that_returns_gets_what_it_missed() {
        let hub = hub();
        let start = hub.last();
        for name in ["a", "b", "c"] {
            hub.publish(LockEvent::new("granted", name));
        }
        assert_eq!(names(hub.listen(Some(start + 1))), ["b", "c"]);
        assert_eq!(names(hub.listen(Some(start + 3))), [""; 0]);
        assert_eq!(names(hub.listen(None)), [""; 0]);
    }

    /// Its events would have the same numbers, and a listener would miss some of them unnoticed.
    #[test]
    fn a_number_of_another_service_is_a_gap() {
        let (before, hub) = (hub(), hub());
        for name in ["a", "b", "c"] {
            before.publish(LockEvent::new("granted", name));
            hub.publish(LockEvent::new("granted", name));
        }
        let numbers = [before.last(), before.last() - 1, hub.last() + 1, 0, 2, u64::MAX];
        for seen in numbers {
            assert_eq!(names(hub.listen(Some(seen))), ["reset", "a", "b", "c"], "{seen}");
        }
        assert!(hub.last() < 1 << 53, "JSON carries it");
    }

    #[test]
    fn h446_losses_that_wait_are_bounded_by_bytes() {
        let (queue, mut losses) = mpsc::channel(1_024);
        let write = |event: &LockEvent| Some(event.name.clone());
        let hub = Hub::new(write).with_losses(Some(queue));
        let name = "n".repeat(LOSSES_BYTES / 8);
        for _ in 0..9 {
            hub.publish(LockEvent::new("lost", &*name));
        }
        let mut count = || std::iter::from_fn(|| losses.try_recv().ok()).count();
        assert_eq!(count(), 4, "each has its name twice");
        hub.publish(LockEvent::new("lost", &*name));
        assert_eq!(count(), 1, "room again");
    }

    #[test]
    fn an_event_that_cannot_be_written_is_no_gap() {
        let write = |event: &LockEvent| (event.name != "b").then(|| event.name.clone());
        let hub = Arc::new(Hub::new(write));
        let listener = hub.listen(None);
        for name in ["a", "b", "c", "b"] {
            hub.publish(LockEvent::new("granted", name));
        }
        assert_eq!(names(listener), ["a", "c"]);
    }

    #[test]
    fn a_gap_is_told() {
        let hub = hub();
        let (start, mut slow) = (hub.last(), hub.listen(None));
        (0..KEPT + 5).for_each(|_| hub.publish(LockEvent::new("granted", "a")));
        assert_eq!(names(hub.listen(Some(start + 4)))[..2], ["reset", "a"]);
        assert_eq!(names(hub.listen(Some(start + 5))).len(), KEPT);
        assert!(matches!(slow.next().now_or_never(), Some(Next::Missed)), "it lags behind");
        let Some(Next::Event(next)) = slow.next().now_or_never() else { panic!("nothing follows") };
        assert_eq!(next.id, start + 6, "the oldest that is kept");
    }

    #[test]
    fn long_names_fill_no_memory() {
        let (hub, name) = (hub(), "x".repeat(64 * 1024));
        let listeners: Vec<_> = (0..64).map(|_| hub.listen(None)).collect();
        (0..KEPT).for_each(|_| hub.publish(LockEvent::new("granted", &*name)));
        let state = hub.lock();
        assert!(state.kept.len() < 35, "{}", state.kept.len());
        let bytes: usize = state.kept.iter().map(|message| message.bytes()).sum();
        assert!(bytes == state.bytes && bytes <= KEPT_BYTES, "{bytes}");
        drop(listeners);
    }
}
