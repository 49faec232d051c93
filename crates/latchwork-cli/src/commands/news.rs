//! What `run` hears from the library while it waits and while the command runs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use latchwork::store::Cause;
use latchwork::{Event, Observer};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

/// What a claim waits for: a holder, if its name is known, and how many others before it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct InTheWay {
    holder: Option<Arc<str>>,
    ahead: u32,
}

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
    told: Option<InTheWay>,
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

    fn waits(&self, name: &str, what: InTheWay) {
        let mut state = self.lock();
        let known = match &state.told {
            Some(told) if self.verbose => *told == what,
            // Some stores tell the name with the next look.
            Some(told) => told.holder.is_some() || what.holder.is_none(),
            None => false,
        };
        if known || !self.tells_waiting {
            return;
        }
        let mut message = format!("waiting for {name:?}");
        if let Some(holder) = &what.holder {
            message += &format!(", held by {holder}");
        }
        match what.ahead {
            0 => {}
            1 => message += "; 1 in line before this one",
            ahead => message += &format!("; {ahead} in line before this one"),
        }
        self.tell(message, what.holder.clone());
        state.told = Some(what);
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
                    _ => blocked.holder.as_ref().map(|holder| holder.shown()),
                };
                let ahead = blocked.ahead.unwrap_or(0);
                self.waits(key.as_str(), InTheWay { holder: in_the_way, ahead });
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
            let blocked = Blocked::by(Cause::Held).with(|it| it.holder = holder.map(Into::into));
            news.event(&Event::Waiting { key: &key, blocked: &blocked });
        }
        std::iter::from_fn(|| lines.try_recv().ok()).map(|line| line.message).collect()
    }

    #[test]
    fn a_quarantine_is_told() {
        let (news, mut lines) = News::new(true, false);
        let key = Key::new("x").unwrap();
        let blocked = Blocked::by(Cause::Quarantine);
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
    fn the_place_in_line_is_told() {
        let (news, mut lines) = News::new(true, true);
        let told = |ahead| InTheWay { holder: Some("a".into()), ahead };
        for ahead in [2, 2, 1, 0] {
            news.waits("x", told(ahead));
        }
        let lines: Vec<_> = std::iter::from_fn(|| Some(lines.try_recv().ok()?.message)).collect();
        assert_eq!(
            lines,
            [
                "waiting for \"x\", held by a; 2 in line before this one",
                "waiting for \"x\", held by a; 1 in line before this one",
                "waiting for \"x\", held by a",
            ]
        );
    }

    #[test]
    fn a_name_that_comes_later_is_told_once_more() {
        let told = lines_of(true, false, [None, None, Some("a"), None, Some("b")]);
        assert_eq!(told, ["waiting for \"x\"", "waiting for \"x\", held by a"]);
    }
}
