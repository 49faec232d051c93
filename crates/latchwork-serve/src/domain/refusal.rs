//! A refusal: why the service does not do what a client asks, and what the client can do next.

use std::time::Duration;

use latchwork::{Error, ErrorKind};

use super::lock_status::LockStatus;

/// What a client does whose renewal the store has not confirmed.
pub(crate) const RENEW_AGAIN_STEP: &str =
    "stop the work before valid_for_ms of the last answer is over; renew again at once";

/// The kind of a refusal, by which clients decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A part of the request cannot be used.
    Invalid,
    /// There is no token, or the service does not know it.
    Unauthorized,
    /// The token does not allow the request.
    Forbidden,
    /// There is no such hold.
    NotFound,
    /// The lock was not free in time.
    TimedOut,
    /// Another reader upgrades its hold.
    UpgradeConflict,
    /// The key is in use as another kind of lock.
    Mismatch,
    /// The client's name for its claim belongs to another request.
    ReusedName,
    /// The store has no such locks.
    Unsupported,
    /// The lock was lost.
    Lost,
    /// The hold was released before.
    Released,
    /// The store has not confirmed a release.
    Unconfirmed,
    /// The hold is in doubt until the store confirms it.
    Suspect,
    /// The store does not answer.
    Unreachable,
    /// The store has too much to do.
    Busy,
    /// The token has reached one of its limits.
    LimitReached,
    /// The service stops.
    Closed,
    /// The store refuses the service.
    Denied,
    /// The data in the store are damaged.
    Corrupt,
    /// A mistake of the service.
    Broken,
}

impl Kind {
    fn of(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::TimedOut => Self::TimedOut,
            ErrorKind::UpgradeConflict => Self::UpgradeConflict,
            ErrorKind::Mismatch => Self::Mismatch,
            ErrorKind::Invalid => Self::Invalid,
            ErrorKind::Unsupported => Self::Unsupported,
            ErrorKind::Lost => Self::Lost,
            ErrorKind::Unreachable => Self::Unreachable,
            ErrorKind::Busy => Self::Busy,
            ErrorKind::Closed => Self::Closed,
            ErrorKind::Denied => Self::Denied,
            ErrorKind::Corrupt => Self::Corrupt,
            _ => Self::Broken,
        }
    }

    /// The kind as one word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Invalid => "Invalid",
            Self::Unauthorized => "Unauthorized",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "NotFound",
            Self::TimedOut => "TimedOut",
            Self::UpgradeConflict => "UpgradeConflict",
            Self::Mismatch | Self::ReusedName => "Mismatch",
            Self::Unsupported => "Unsupported",
            Self::Lost => "Lost",
            Self::Released => "Released",
            Self::Unconfirmed => "Unconfirmed",
            Self::Suspect => "Suspect",
            Self::Unreachable => "Unreachable",
            Self::Busy | Self::LimitReached => "Busy",
            Self::Closed => "Closed",
            Self::Denied => "Denied",
            Self::Corrupt => "Corrupt",
            Self::Broken => "Broken",
        }
    }
}

/// How soon a client may repeat a request that was refused for the moment.
const PAUSE: Duration = Duration::from_secs(1);

/// Why the service refuses a request.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) kind: Kind,
    /// The cause, for people.
    pub(crate) message: String,
    /// The name of the lock that it is about.
    pub(crate) key: Option<String>,
    /// The next step of the client; empty for the usual one of the kind.
    pub(crate) step: String,
    /// The lock at this moment, if it was not free.
    pub(crate) lock: Option<Box<LockStatus>>,
    /// The cause of a loss, as one word.
    pub(crate) reason: Option<&'static str>,
    /// How soon the client may try again, if only the moment is wrong.
    pub(crate) retry_after: Option<Duration>,
}

impl Refusal {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            key: None,
            step: String::new(),
            lock: None,
            reason: None,
            retry_after: None,
        }
    }

    /// A part of the request cannot be used; the message names it.
    pub(crate) fn invalid(message: impl Into<String>, step: &str) -> Self {
        Self::new(Kind::Invalid, message).with_next_step(step)
    }

    /// The token does not allow the request.
    pub(crate) fn forbidden(message: impl Into<String>, step: &str) -> Self {
        Self::new(Kind::Forbidden, message).with_next_step(step)
    }

    /// The token has reached a limit.
    pub(crate) fn limit(message: impl Into<String>, step: &str) -> Self {
        let refusal = Self::new(Kind::LimitReached, message).with_next_step(step);
        Self { retry_after: Some(PAUSE), ..refusal }
    }

    /// The store has not answered in time; the same request may.
    pub(crate) fn again(message: impl Into<String>, step: &str) -> Self {
        let refusal = Self::new(Kind::Unreachable, message).with_next_step(step);
        Self { retry_after: Some(PAUSE), ..refusal }
    }

    /// The service stops.
    pub(crate) fn closed() -> Self {
        let message = "the service is stopping: it takes and renews no locks";
        let refusal = Self::new(Kind::Closed, message).with_next_step(
            "repeat this request at another instance; if none has the same seal key, finish within what remains of \
             valid_for_ms and release",
        );
        Self { retry_after: Some(PAUSE), ..refusal }
    }

    /// A newer version of the service has granted the hold.
    pub(crate) fn newer() -> Self {
        let message = "hold: a newer version of the service has granted it, and this instance cannot read its id";
        let refusal = Self::new(Kind::Closed, message).with_next_step(
            "repeat the request, so that an instance of the newer version gets it; update this instance",
        );
        Self { retry_after: Some(PAUSE), ..refusal }
    }

    /// The token is in no file of tokens, or no longer in it.
    pub(crate) fn unknown_token() -> Self {
        Self::new(Kind::Unauthorized, "token: the service does not know it")
            .with_next_step("check the token, and the file that the service was started with")
    }

    /// There is no such hold; there may never have been one.
    pub(crate) fn no_hold() -> Self {
        Self::new(Kind::NotFound, "hold: the service does not know this hold").with_next_step(
            "behind a balancer, ask the instance that granted it, or give all instances the same --seal-key-file; else treat \
             the lock as lost: it was released, ended long ago, or the service was restarted since",
        )
    }

    /// An error of the library about the lock `name`.
    pub(crate) fn of(error: &Error, name: Option<&str>) -> Self {
        let kind = Kind::of(error.kind());
        if kind == Kind::Closed {
            return Self::closed();
        }
        // The library's hint for a timeout names commands; a client of the service has none.
        let hint = error.next_step().filter(|_| kind != Kind::TimedOut);
        let is_for_now = matches!(kind, Kind::Unreachable | Kind::Busy);
        Self {
            key: name.map(str::to_owned),
            step: hint.unwrap_or_default().to_owned(),
            retry_after: is_for_now.then_some(PAUSE),
            ..Self::new(kind, error.message())
        }
    }

    /// The same for a client that may not see who holds the lock.
    #[must_use]
    pub(crate) fn without_holders(self) -> Self {
        let message = match self.kind {
            Kind::UpgradeConflict => {
                "another client waits for this hold: an upgrade, one of another kind, or an earlier one"
            }
            _ => "the lock is not free",
        };
        Self { message: message.to_owned(), lock: None, ..self }
    }

    /// The same for a client that holds nothing by its request.
    #[must_use]
    pub(crate) fn without_hold(self) -> Self {
        match self.kind {
            Kind::Closed => self.with_next_step(
                "repeat this request at another instance, or at this one when it runs again: it has acquired nothing",
            ),
            _ => self,
        }
    }

    /// An error of the store for a caller without a token, who gets none of its words.
    pub(crate) fn unready(error: &Error) -> Self {
        let told = Self::of(error, None);
        if told.kind == Kind::Closed {
            return told.without_hold();
        }
        let step =
            "see the reason in GET /v1/doctor, which needs a token, or run `latchwork doctor`";
        Self { message: "store: it cannot be used now".into(), ..told }.with_next_step(step)
    }

    #[must_use]
    pub(crate) fn with_next_step(mut self, step: impl Into<String>) -> Self {
        self.step = step.into();
        self
    }

    #[must_use]
    pub(crate) fn key(mut self, name: impl Into<String>) -> Self {
        self.key = Some(name.into());
        self
    }

    /// Adds the lock as it is now.
    #[must_use]
    pub(crate) fn lock(mut self, lock: LockStatus) -> Self {
        self.lock = Some(Box::new(lock));
        self
    }

    #[must_use]
    pub(crate) fn reason(mut self, reason: &'static str) -> Self {
        self.reason = Some(reason);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// H500
    #[test]
    fn h500_a_caller_without_a_token_gets_no_words_of_the_store() {
        let error = Error::new(ErrorKind::Denied, "token s3cret").with_next_step("use s3cret");
        let told = Refusal::unready(&error);
        assert_eq!(told.kind, Kind::Denied);
        assert!(!format!("{told:?}").contains("s3cret"), "{told:?}");
    }
}
