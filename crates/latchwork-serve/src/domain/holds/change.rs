//! A read hold that becomes a write hold, or the other way round: the hold of the client stays the same.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use latchwork::{Error, Exchange, FencingToken, Guard};
use latchwork_store::{Key, Mode, Moment};

use super::hold_status::HoldStatus;
use super::id::HoldId;
use super::registry::Registry;
use super::validity::keep_until;
use crate::domain::refusal::Refusal;

/// The mode that a client wants for its hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// To write; waits for the other readers.
    Upgrade { wait: Duration },
    /// To read.
    Downgrade,
}

impl Change {
    /// The mode that the hold is to have.
    pub(crate) fn mode(self) -> Mode {
        match self {
            Self::Upgrade { .. } => Mode::Write,
            Self::Downgrade => Mode::Read,
        }
    }

    /// How long it may wait.
    pub(crate) fn wait(self) -> Duration {
        match self {
            Self::Upgrade { wait } => wait,
            Self::Downgrade => Duration::ZERO,
        }
    }

    /// The same, with another wait.
    pub(crate) fn with_wait(self, wait: Duration) -> Self {
        match self {
            Self::Upgrade { .. } => Self::Upgrade { wait },
            Self::Downgrade => Self::Downgrade,
        }
    }

    /// The next step for a lock that cannot change so.
    pub(crate) fn fitting(self) -> &'static str {
        match self {
            Self::Upgrade { .. } => "upgrade only a lock that was acquired with the mode read",
            Self::Downgrade => "downgrade only a lock that was acquired with the mode write",
        }
    }
}

/// A change that the store is to be asked for.
pub(crate) struct Changing {
    pub(crate) name: String,
    pub(crate) holder: Arc<str>,
    pub(crate) ttl: Duration,
    pub(crate) preparing: Pin<Box<dyn Future<Output = Result<Exchange, Error>> + Send>>,
}

/// A hold that has changed.
pub(crate) struct Changed {
    pub(crate) key: Key,
    pub(crate) from: FencingToken,
    pub(crate) token: FencingToken,
    /// How long the hold before has lasted.
    pub(crate) lasted: Duration,
    pub(crate) status: HoldStatus,
    /// Completes when the store has released the hold before.
    pub(crate) settled: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Registry {
    /// Begins to change a hold; `None` if it has that mode.
    ///
    /// # Errors
    ///
    /// As [`look`](Self::look); `Invalid` for several locks and for a task.
    pub(crate) fn begin_change(
        &self,
        id: HoldId,
        owner: &str,
        change: Change,
    ) -> Result<Option<Changing>, Refusal> {
        let state = self.lock();
        let Some(hold) = state.holds.get(id).filter(|hold| hold.is_kept_for(owner)) else {
            return Err(state.missing(id, owner));
        };
        let name = hold.name(&self.names);
        let Some(guard) = hold.kept.one() else {
            let message = "hold: it has several locks, or is a task";
            return Err(Refusal::invalid(message, change.fitting()).key(name));
        };
        if guard.mode() == change.mode() {
            return Ok(None);
        }
        let preparing = prepare(guard, change);
        Ok(Some(Changing { name, holder: guard.holder().into(), ttl: hold.ttl(), preparing }))
    }

    /// Changes a hold to what the store has granted, and renews it: the request arrived at `arrival`.
    ///
    /// # Errors
    ///
    /// Those of a hold that has ended; what was granted is released.
    pub(crate) fn exchange(
        &self,
        id: HoldId,
        owner: &str,
        exchange: Exchange,
        arrival: Moment,
    ) -> Result<Changed, Refusal> {
        let now = self.clock.now();
        let mut state = self.lock();
        let Some(hold) = state.holds.get_mut(id).filter(|hold| hold.is_kept_for(owner)) else {
            return Err(state.missing(id, owner));
        };
        let Some(guard) = hold.kept.one_mut() else { return Err(Refusal::no_hold()) };
        let (key, from) = (guard.key().clone(), guard.token());
        let settled = guard.exchange(exchange).map_err(|error| Refusal::of(&error, None))?;
        let token = guard.token();
        let lasted = now.since(hold.since);
        hold.since = now;
        let end = hold.end.max(keep_until(arrival, now, hold.ttl()));
        let status = self.status(id, hold, end, arrival);
        state.holds.set_end(id, end);
        state.by_lock.remove(&(key.clone(), from));
        state.by_lock.insert((key.clone(), token), id);
        Ok(Changed { key, from, token, lasted, status, settled: Box::pin(settled) })
    }
}

/// Asks the store.
pub(crate) fn prepare(
    guard: &Guard,
    change: Change,
) -> Pin<Box<dyn Future<Output = Result<Exchange, Error>> + Send>> {
    match change {
        Change::Upgrade { wait } => Box::pin(guard.prepare_upgrade(Some(wait))),
        Change::Downgrade => Box::pin(guard.prepare_downgrade()),
    }
}
