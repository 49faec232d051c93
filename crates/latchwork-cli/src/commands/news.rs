//! What `run` hears from the library while it waits and while the command runs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use latchwork::store::Cause;
use latchwork::{Event, Observer};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

/// Whom a claim waits for; the inner `None` is a holder without a name.
type Ahead = Option<Option<Arc<str>>>;

/// Something about waiting.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) message: String,
    /// Who has the lock, as far as that is known.
    pub(crate) holder: Option<Arc<str>>,
}

/// Keeps what people may want to know. The main thread prints it: a terminal that stands still
/// must not stop the renewals.
#[derive(Debug)]
pub(crate) struct News {
    tells_waiting: bool,
    verbose: bool,
    told: UnboundedSender<Waiting>,
    /// Whether the store has answered the release.
    released: watch::Sender<bool>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    ahead: Ahead,
    failure: Option<String>,
}

impl News {
    /// Lines about waiting: none; one, and another if the holder's name comes later; or with `verbose` one
    /// for each holder and each failed try.
    pub(crate) fn new(
        tells_waiting: bool,
        verbose: bool,
    ) -> (Arc<Self>, UnboundedReceiver<Waiting>) {
        let (told, lines) = unbounded_channel();
        let (released, state) = (watch::Sender::new(false), Mutex::default());
        (Arc::new(Self { tells_waiting, verbose, told, released, state }), lines)
    }

    /// Forgets what was heard of an earlier term.
    pub(crate) fn start_anew(&self, lines: &mut UnboundedReceiver<Waiting>) {
        *self.lock() = State::default();
        self.released.send_replace(false);
        while lines.try_recv().is_ok() {}
    }

    /// Completes when the store has answered the release of what was held.
    pub(crate) async fn released(&self) {
        // The sender is here, so there is no error.
        let _ = self.released.subscribe().wait_for(|released| *released).await;
    }

    /// What went wrong with the last renewal, unless one has succeeded since.
    pub(crate) fn renewal_failure(&self) -> Option<String> {
        self.lock().failure.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waits(&self, name: &str, holder: &Option<Arc<str>>) {
        let mut state = self.lock();
        let known = match &state.ahead {
            Some(told) if self.verbose => told == holder,
            // Some stores tell the name with the next look.
            Some(told) => told.is_some() || holder.is_none(),
            None => false,
        };
        if known || !self.tells_waiting {
            return;
        }
        state.ahead = Some(holder.clone());
        let message = match holder {
            Some(holder) => format!("waiting for {name:?}, held by {holder}"),
            None => format!("waiting for {name:?}"),
        };
        self.tell(message, holder.clone());
    }

    fn tell(&self, message: String, holder: Option<Arc<str>>) {
        // Nobody listens any more once the lock is held.
        let _ = self.told.send(Waiting { message, holder });
    }
}

impl Observer for News {
    fn event(&self, event: &Event<'_>) {
        match event {
            Event::Waiting { key, blocked } => {
                // Nobody holds it, and without a word nobody would know what is waited for.
                let quarantine = || "a store in quarantine, which may have lost locks".into();
                let in_the_way = match blocked.cause {
                    Cause::Quarantine => Some(quarantine()),
                    _ => blocked.holder.clone(),
                };
                self.waits(key.as_str(), &in_the_way);
            }
            Event::TryFailed { key, error } if self.verbose => {
                let message = format!("waiting for {:?}: {error}; trying again", key.as_str());
                self.tell(message, None);
            }
            Event::RenewFailed { error, .. } => self.lock().failure = Some(error.to_string()),
            Event::Released { .. } => drop(self.released.send_replace(true)),
            Event::Renewed { .. } => self.lock().failure = None,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use latchwork::store::{Blocked, Key};

    use super::*;

    fn lines(tells_waiting: bool, verbose: bool) -> Vec<String> {
        lines_of(tells_waiting, verbose, [Some("a"), Some("a"), Some("b")])
    }

    fn lines_of(
        tells_waiting: bool,
        verbose: bool,
        holders: impl IntoIterator<Item = Option<&'static str>>,
    ) -> Vec<String> {
        let (news, mut lines) = News::new(tells_waiting, verbose);
        let key = Key::new("x").unwrap();
        for holder in holders {
            let blocked = Blocked {
                retry_after: None,
                ahead: None,
                cause: Cause::Held,
                holder: holder.map(Into::into),
                resume: None,
                store_time: None,
            };
            news.event(&Event::Waiting { key: &key, blocked: &blocked });
        }
        std::iter::from_fn(|| lines.try_recv().ok()).map(|line| line.message).collect()
    }

    #[test]
    fn a_quarantine_is_told() {
        let (news, mut lines) = News::new(true, false);
        let key = Key::new("x").unwrap();
        let blocked = Blocked {
            retry_after: None,
            ahead: None,
            cause: Cause::Quarantine,
            holder: None,
            resume: None,
            store_time: None,
        };
        news.event(&Event::Waiting { key: &key, blocked: &blocked });
        assert!(lines.try_recv().unwrap().message.contains("quarantine"));
    }

    #[test]
    fn waiting_is_told_once_or_for_each_holder_or_not() {
        assert_eq!(lines(false, false), [] as [&str; 0]);
        assert_eq!(lines(true, false), ["waiting for \"x\", held by a"]);
        assert_eq!(lines(true, true).len(), 2);
    }

    #[test]
    fn a_name_that_comes_later_is_told_once_more() {
        let told = lines_of(true, false, [None, None, Some("a"), None, Some("b")]);
        assert_eq!(told, ["waiting for \"x\"", "waiting for \"x\", held by a"]);
    }
}
