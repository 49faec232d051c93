//! What a command runs under: a lock, several, or a task that is done once in a period.

use std::time::Duration;

use latchwork::once::Run;
use latchwork::{Error, ErrorKind, Exchange, Guard, HoldState, Lost, MultiGuard, NotHeld};
use latchwork_store::Moment;
use latchwork_store::clock::boot_time;

use crate::keeper::hold_id::Terms;
use crate::keeper::loan::{self, Loan};

/// A hold of one lock or several, or of what the command around this one holds.
#[derive(Debug)]
pub(crate) enum Hold {
    One(Guard),
    Several(MultiGuard),
    Task(Run),
    Borrowed(Vec<Loan>),
}

impl Hold {
    fn guards(&self) -> &[Guard] {
        match self {
            Self::One(guard) => std::slice::from_ref(guard),
            Self::Several(guards) => guards.guards(),
            Self::Task(run) => std::slice::from_ref(run),
            Self::Borrowed(_) => &[],
        }
    }

    /// What is borrowed.
    pub(crate) fn loans(&self) -> &[Loan] {
        match self {
            Self::Borrowed(loans) => loans,
            _ => &[],
        }
    }

    /// Whether it is that of the command around this one.
    pub(crate) fn is_borrowed(&self) -> bool {
        matches!(self, Self::Borrowed(_))
    }

    /// The keys, in the order of the tokens.
    pub(crate) fn names(&self) -> Vec<String> {
        let own = self.guards().iter().map(|guard| guard.key().to_string());
        own.chain(self.loans().iter().map(|loan| loan.key.clone())).collect()
    }

    /// What a borrower of this key has to know; `None` if it is not held.
    pub(crate) fn terms(&self, key: &str) -> Option<Terms> {
        let state = self.state();
        let guard = self.guards().iter().find(|guard| guard.key().as_str() == key)?;
        let left = self.valid_until().since(boot_time());
        let is_held = !matches!(state, HoldState::Lost(_)) && !left.is_zero();
        is_held.then(|| Terms {
            token: guard.token().to_string(),
            left,
            ttl: self.ttl(),
            is_suspect: state == HoldState::Suspect,
        })
    }

    /// The keys, one a line.
    pub(crate) fn keys(&self) -> String {
        self.names().join("\n")
    }

    /// Takes one of several locks out, to release it before the others; `None` for the only one.
    pub(crate) fn take(&mut self, key: &str) -> Option<Guard> {
        match self {
            Self::Several(guards) => guards.take(key),
            Self::One(_) | Self::Task(_) | Self::Borrowed(_) => None,
        }
    }

    /// The guard of the only lock.
    pub(crate) fn one(&self) -> Option<&Guard> {
        match self {
            Self::One(guard) => Some(guard),
            Self::Several(_) | Self::Task(_) | Self::Borrowed(_) => None,
        }
    }

    /// Replaces the hold of the only lock; says its token, and what completes when the one before is released.
    pub(crate) fn exchange(
        &mut self,
        exchange: Exchange,
    ) -> Result<(String, impl Future<Output = ()> + use<>), Error> {
        match self {
            Self::One(guard) => {
                let settled = guard.exchange(exchange)?;
                Ok((guard.token().to_string(), settled))
            }
            Self::Several(_) | Self::Task(_) | Self::Borrowed(_) => {
                Err(Error::new(ErrorKind::Invalid, "the hold has several locks"))
            }
        }
    }

    /// The tokens, in the order of the keys.
    pub(crate) fn each_token(&self) -> Vec<String> {
        let own = self.guards().iter().map(|guard| guard.token().to_string());
        own.chain(self.loans().iter().map(|loan| loan.token.clone())).collect()
    }

    /// The tokens, one a line, as the keys.
    pub(crate) fn tokens(&self) -> String {
        self.each_token().join("\n")
    }

    /// The shortest ttl.
    pub(crate) fn ttl(&self) -> Duration {
        let own = self.guards().iter().map(Guard::ttl);
        own.chain(self.loans().iter().map(Loan::ttl)).min().unwrap_or_default()
    }

    /// Until when all may be counted on.
    pub(crate) fn valid_until(&self) -> Moment {
        let own = self.guards().iter().map(Guard::valid_until);
        own.chain(self.loans().iter().map(Loan::valid_until)).min().unwrap_or(Moment::NEVER)
    }

    /// When the period of a task is over, by the wall clock; `None` for a lock.
    pub(crate) fn period_end(&self) -> Option<Duration> {
        match self {
            Self::One(_) | Self::Several(_) | Self::Borrowed(_) => None,
            Self::Task(run) => Some(run.period().end),
        }
    }

    /// What the hold is, by the clock: as good as the worst of its locks.
    pub(crate) fn state(&self) -> HoldState {
        match self {
            Self::One(guard) => guard.state(),
            Self::Several(guards) => guards.state(),
            Self::Task(run) => run.state(),
            Self::Borrowed(loans) => {
                let states = loans.iter().map(Loan::state);
                let worse = |one, other| match (one, other) {
                    (HoldState::Lost(_), _) | (_, HoldState::Held) => one,
                    (_, worse) => worse,
                };
                states.fold(HoldState::Held, worse)
            }
        }
    }

    /// Completes when it was lost.
    pub(crate) async fn lost(&self) -> Lost {
        match self {
            Self::One(guard) => guard.lost().await,
            Self::Several(guards) => guards.lost().await,
            Self::Task(run) => run.lost().await,
            Self::Borrowed(loans) => {
                let lost = |state| match state {
                    HoldState::Lost(lost) => Some(lost),
                    _ => None,
                };
                loan::until(loans, lost).await
            }
        }
    }

    /// Completes when it is in doubt, or was lost.
    pub(crate) async fn not_held(&self) -> NotHeld {
        match self {
            Self::One(guard) => guard.not_held().await,
            Self::Several(guards) => guards.not_held().await,
            Self::Task(run) => run.not_held().await,
            Self::Borrowed(loans) => {
                let not_held = |state| match state {
                    HoldState::Held => None,
                    HoldState::Lost(lost) => Some(NotHeld::Lost(lost)),
                    _ => Some(NotHeld::Suspect),
                };
                loan::until(loans, not_held).await
            }
        }
    }

    /// Leaves it without a release: the store keeps it to its end, and for the lock delay after that.
    ///
    /// Renewals go on until the manager is closed.
    pub(crate) fn leave_to_expire(self) {
        // A guard that is dropped releases.
        std::mem::forget(self);
    }

    /// Releases it. A task is closed for its period if it succeeded. What is borrowed is returned.
    pub(crate) async fn give_back(self, succeeded: bool) -> Result<(), Error> {
        match self {
            Self::One(guard) => guard.release().await,
            Self::Several(guards) => guards.release().await,
            Self::Task(run) if succeeded => run.succeed().await,
            Self::Task(run) => run.fail().await,
            Self::Borrowed(_) => match self.state() {
                HoldState::Lost(_) => Err(Error::new(ErrorKind::Lost, "the outer hold is over")),
                _ => Ok(()),
            },
        }
    }
}
