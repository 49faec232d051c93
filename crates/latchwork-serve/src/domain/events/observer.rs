//! Hears of every change of a lock from the library, and passes it on without waiting.

use std::sync::Arc;

use latchwork::store::Key;
use latchwork::{Event, FencingToken, LostReason, Observer};
use tokio::sync::mpsc::UnboundedSender;

use super::hub::{EventView, Hub};
use crate::domain::names::Names;
use crate::http::views::millis;

/// A hold that the library has found to be lost.
#[derive(Debug)]
pub(crate) struct Loss {
    pub(crate) key: Key,
    pub(crate) token: FencingToken,
    pub(crate) reason: LostReason,
}

/// Called from Latchwork's own threads: it neither waits nor calls back into the library.
pub(crate) struct Ear {
    pub(crate) hub: Arc<Hub>,
    pub(crate) names: Names,
    pub(crate) losses: UnboundedSender<Loss>,
}

impl Ear {
    fn event(&self, event: &'static str, key: &Key) -> EventView {
        EventView::new(event, self.names.name_of(key.as_str()))
    }
}

impl Observer for Ear {
    fn event(&self, event: &Event<'_>) {
        // A grant and a release are told by those who know the holder: see `service`.
        let told = match *event {
            Event::WaitBegan { key } => self.event("waiting", key),
            Event::WaitEnded { key, waited, admitted: false } => {
                let mut told = self.event("withdrawn", key);
                told.lasted_ms = Some(millis(waited));
                told
            }
            Event::HandedOver { key, from, token, held } => {
                let mut told = self.event("handed_over", key);
                (told.from, told.token) = (Some(from.to_string()), Some(token.to_string()));
                told.lasted_ms = Some(millis(held));
                told
            }
            Event::Suspect { key, token } => {
                let mut told = self.event("suspect", key);
                told.token = Some(token.to_string());
                told
            }
            Event::Lost { key, token, lost, .. } => {
                let loss = Loss { key: key.clone(), token, reason: lost.reason };
                // Nobody listens any more once the service has ended.
                let _ = self.losses.send(loss);
                return;
            }
            _ => return,
        };
        self.hub.tell(told);
    }
}
