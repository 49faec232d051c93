//! Observes the locks in the library, and publishes their events without waiting.

use std::sync::Arc;

use latchwork::{Event, FencingToken, LostReason, Observer};
use latchwork_store::Key;
use tokio::sync::mpsc::UnboundedSender;

use super::event::LockEvent;
use super::hub::Hub;
use crate::domain::names::Names;

tokio::task_local! {
    /// The text of the holder whose request is polled: the library tells of a wait while it is.
    pub(crate) static WAITER: Arc<str>;
}

/// A hold that the library has lost.
#[derive(Debug)]
pub(crate) struct Loss {
    pub(crate) key: Key,
    pub(crate) token: FencingToken,
    pub(crate) reason: LostReason,
}

/// Called from Latchwork's own threads: it neither waits nor calls back into the library.
pub(crate) struct LockObserver {
    pub(crate) hub: Arc<Hub>,
    pub(crate) names: Names,
    pub(crate) losses: UnboundedSender<Loss>,
}

impl LockObserver {
    fn new_event(&self, word: &'static str, key: &Key) -> LockEvent {
        LockEvent::new(word, self.names.name_of(key.as_str()))
    }

    /// The event of a waiter, with its name.
    fn of_waiter(&self, word: &'static str, key: &Key) -> LockEvent {
        let holder = WAITER.try_with(|holder| holder.to_string()).ok();
        LockEvent { holder, ..self.new_event(word, key) }
    }
}

impl Observer for LockObserver {
    fn event(&self, event: &Event<'_>) {
        // The service itself publishes grants and releases: it knows the holder.
        let event = match *event {
            Event::WaitBegan { key } => self.of_waiter("waiting", key),
            Event::WaitEnded { key, waited, admitted: false } => {
                LockEvent { lasted: Some(waited), ..self.of_waiter("withdrawn", key) }
            }
            Event::HandedOver { key, from, token, held } => LockEvent {
                from: Some(from),
                token: Some(token),
                lasted: Some(held),
                ..self.new_event("handed_over", key)
            },
            Event::Suspect { key, token } => {
                LockEvent { token: Some(token), ..self.new_event("suspect", key) }
            }
            Event::Lost { key, token, lost, .. } => {
                let loss = Loss { key: key.clone(), token, reason: lost.reason };
                // Fails once the service has ended.
                let _ = self.losses.send(loss);
                return;
            }
            _ => return,
        };
        self.hub.publish(event);
    }
}
