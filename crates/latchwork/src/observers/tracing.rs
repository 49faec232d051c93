//! Events of locks as spans and log events.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::rules::observe::{Event, Observer};
use latchwork_store::{FencingToken, Key};
use tracing::{Level, Span, debug, info, span, warn};

/// An [`Observer`] that writes through the `tracing` facade.
///
/// Each hold is a span `hold` with `key`, `token` and `waited_ms`, from the grant or the handover
/// to its end. Within it are events: `renewed` (debug), `renewal failed` and `suspect` (warn),
/// `released` (info), `lost` (warn, with the reason). Events before a grant and after a hold are
/// outside the span: `waiting` (debug, with the holder), `stopped waiting` (debug, without the
/// lock), `try failed` (warn), `settled` (debug), `release failed` (warn).
///
/// The span is a root: the thread that reports an event opens and closes it, not the task that
/// acquired the lock.
///
/// ```
/// use std::sync::Arc;
/// use latchwork::observers::Traces;
/// # async fn f() -> Result<(), latchwork::Error> {
/// let locks = latchwork::connect("mem:").await?.observer(Arc::new(Traces::new()));
/// # let _ = locks; Ok(()) }
/// ```
#[derive(Default)]
pub struct Traces {
    holds: Mutex<HashMap<(Key, FencingToken), Span>>,
}

impl Traces {
    /// Creates traces of all locks of a manager.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(Key, FencingToken), Span>> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, key: &Key, token: FencingToken, waited: Duration) {
        let span = span!(parent: None, Level::INFO, "hold", key = %key, token = token.get(),
            waited_ms = waited.as_millis());
        self.lock().insert((key.clone(), token), span);
    }

    /// The span of a hold, to write an event into.
    fn of(&self, key: &Key, token: FencingToken) -> Span {
        self.lock().get(&(key.clone(), token)).cloned().unwrap_or_else(Span::none)
    }

    fn end(&self, key: &Key, token: FencingToken) -> Span {
        self.lock().remove(&(key.clone(), token)).unwrap_or_else(Span::none)
    }
}

impl Observer for Traces {
    fn event(&self, event: &Event<'_>) {
        match *event {
            Event::WaitBegan { .. } | Event::WaitEnded { admitted: true, .. } => {}
            Event::WaitEnded { key, waited, admitted: false } => {
                debug!(%key, waited_ms = waited.as_millis(), "stopped waiting");
            }
            Event::Waiting { key, blocked } => {
                let holder = blocked.holder.as_ref().map_or("unknown", |holder| &*holder.text);
                debug!(%key, holder, cause = ?blocked.cause, "waiting");
            }
            Event::TryFailed { key, error } => warn!(%key, %error, "try failed"),
            Event::Acquired { key, token, waited, .. } => {
                self.begin(key, token, waited);
            }
            Event::HandedOver { key, from, held, .. } => {
                let held_ms = held.as_millis();
                self.end(key, from).in_scope(|| info!(held_ms, "handed over"));
            }
            Event::Received { key, token, waited } => self.begin(key, token, waited),
            Event::Renewed { key, token, took, late, remaining } => {
                self.of(key, token).in_scope(|| {
                    let (took_ms, late_ms) = (took.as_millis(), late.as_millis());
                    debug!(took_ms, late_ms, remaining_ms = remaining.as_millis(), "renewed");
                });
            }
            Event::RenewFailed { key, token, error, remaining } => {
                self.of(key, token).in_scope(|| {
                    warn!(%error, remaining_ms = remaining.as_millis(), "renewal failed");
                });
            }
            Event::Suspect { key, token } => self.of(key, token).in_scope(|| warn!("suspect")),
            Event::ClockStepped { key, by } => {
                warn!(%key, by_ms = by / 1_000_000, "the store's clock was set");
            }
            Event::ClockUnsteady { key, ratio } => {
                warn!(%key, ratio, "the store's clock runs at another rate");
            }
            Event::Lost { key, token, lost, held } => {
                let held_ms = held.as_millis();
                self.end(key, token).in_scope(|| warn!(reason = %lost, held_ms, "lost"));
            }
            Event::Released { key, token, held } => {
                let held_ms = held.as_millis();
                self.end(key, token).in_scope(|| info!(held_ms, "released"));
            }
            Event::Detached { key, token, held } => {
                let held_ms = held.as_millis();
                self.end(key, token).in_scope(|| info!(held_ms, "detached"));
            }
            Event::Adopted { key, token } => self.begin(key, token, Duration::ZERO),
            Event::Settled { key } => debug!(%key, "settled"),
            Event::ReleaseFailed { key, held, error } => {
                let span = held.map_or_else(Span::none, |(token, _)| self.end(key, token));
                span.in_scope(|| warn!(%key, %error, "release failed"));
            }
        }
    }
}

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traces").finish_non_exhaustive()
    }
}
