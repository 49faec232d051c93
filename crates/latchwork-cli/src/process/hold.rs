//! What a command runs under: a lock, several, or a task that is done once in a period.

use std::time::Duration;

use latchwork::once::Run;
use latchwork::store::Moment;
use latchwork::{Error, Guard, HoldState, Lost, MultiGuard, NotHeld};

/// A hold of one lock or several.
#[derive(Debug)]
pub(crate) enum Hold {
    One(Guard),
    Several(MultiGuard),
    Task(Run),
}

impl Hold {
    fn guards(&self) -> &[Guard] {
        match self {
            Self::One(guard) => std::slice::from_ref(guard),
            Self::Several(guards) => guards.guards(),
            Self::Task(run) => std::slice::from_ref(run),
        }
    }

    /// The keys, in the order of the tokens.
    pub(crate) fn names(&self) -> Vec<String> {
        self.guards().iter().map(|guard| guard.key().to_string()).collect()
    }

    /// The keys, one a line.
    pub(crate) fn keys(&self) -> String {
        self.names().join("\n")
    }

    /// Takes one of several locks out, to release it before the others; `None` for the only one.
    pub(crate) fn take(&mut self, key: &str) -> Option<Guard> {
        match self {
            Self::Several(guards) => guards.take(key),
            Self::One(_) | Self::Task(_) => None,
        }
    }

    /// The tokens, in the order of the keys.
    pub(crate) fn each_token(&self) -> Vec<String> {
        self.guards().iter().map(|guard| guard.token().to_string()).collect()
    }

    /// The tokens, one a line, as the keys.
    pub(crate) fn tokens(&self) -> String {
        self.each_token().join("\n")
    }

    /// The shortest ttl.
    pub(crate) fn ttl(&self) -> Duration {
        self.guards().iter().map(Guard::ttl).min().unwrap_or_default()
    }

    /// Until when all may be counted on.
    pub(crate) fn valid_until(&self) -> Moment {
        self.guards().iter().map(Guard::valid_until).min().unwrap_or(Moment::NEVER)
    }

    /// When the period of a task is over, by the wall clock; `None` for a lock.
    pub(crate) fn period_end(&self) -> Option<Duration> {
        match self {
            Self::One(_) | Self::Several(_) => None,
            Self::Task(run) => Some(run.period().end),
        }
    }

    /// What the hold is, by the clock: as good as the worst of its locks.
    pub(crate) fn state(&self) -> HoldState {
        match self {
            Self::One(guard) => guard.state(),
            Self::Several(guards) => guards.state(),
            Self::Task(run) => run.state(),
        }
    }

    /// Completes when it was lost.
    pub(crate) async fn lost(&self) -> Lost {
        match self {
            Self::One(guard) => guard.lost().await,
            Self::Several(guards) => guards.lost().await,
            Self::Task(run) => run.lost().await,
        }
    }

    /// Completes when it is in doubt, or was lost.
    pub(crate) async fn not_held(&self) -> NotHeld {
        match self {
            Self::One(guard) => guard.not_held().await,
            Self::Several(guards) => guards.not_held().await,
            Self::Task(run) => run.not_held().await,
        }
    }

    /// Leaves it without a release: the store keeps it to its end, and for the lock delay after that.
    ///
    /// Renewals go on until the manager is closed.
    pub(crate) fn leave_to_expire(self) {
        // A guard that is dropped releases.
        std::mem::forget(self);
    }

    /// Releases it. A task is closed for its period if it succeeded.
    pub(crate) async fn give_back(self, succeeded: bool) -> Result<(), Error> {
        match self {
            Self::One(guard) => guard.release().await,
            Self::Several(guards) => guards.release().await,
            Self::Task(run) if succeeded => run.succeed().await,
            Self::Task(run) => run.fail().await,
        }
    }
}
