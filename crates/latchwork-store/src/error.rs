//! Errors: those of a backend, and those of a user.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::clock::Moment;
use crate::key::Key;

/// The error of a backend's verb, and whether the verb may have taken effect.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BackendError {
    /// The kind of the error.
    pub kind: BackendErrorKind,
    /// Whether the store may have carried out the request.
    pub effect: Effect,
    /// What happened, for people: the server's words, the path, the node.
    pub message: String,
    /// The suggested next step, if any.
    pub next_step: Option<String>,
}

/// The kinds of backend errors. Contention is not among them (B9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendErrorKind {
    /// The store did not answer, or answered with an error.
    Unreachable,
    /// Credentials or rights were refused.
    Denied,
    /// The key is in use as another kind of lock (B12).
    Mismatch,
    /// This store does not support the request.
    Unsupported,
    /// The data in the store is damaged.
    Corrupt,
    /// This store does not accept the key, the duration or the option; the message names which.
    Invalid,
}

/// Whether a failed request may have changed the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// It certainly did not.
    NotApplied,
    /// It may have, or may still.
    Unknown,
}

impl BackendError {
    /// Creates an error from its kind, effect and message.
    pub fn new(kind: BackendErrorKind, effect: Effect, message: impl Into<String>) -> Self {
        Self { kind, effect, message: message.into(), next_step: None }
    }

    /// Adds the suggested next step.
    #[must_use]
    pub fn with_next_step(mut self, step: impl Into<String>) -> Self {
        self.next_step = Some(step.into());
        self
    }

    /// Returns the error of a login for which a source has no other one, and why.
    #[must_use]
    pub fn unrenewed(mut self, problem: &Error) -> Self {
        self.message.push_str(&format!("; no other login was found: {}", problem.message()));
        match problem.next_step() {
            Some(step) => self.with_next_step(step),
            None => self,
        }
    }

    /// Returns the error with this effect of the request.
    #[must_use]
    pub fn with_effect(self, effect: Effect) -> Self {
        Self { effect, ..self }
    }

    /// Creates the error of a store whose limits of permits cannot change.
    pub fn cannot_resize() -> Self {
        let message = "this store cannot change the limit of a semaphore";
        Self::new(BackendErrorKind::Unsupported, Effect::NotApplied, message)
            .with_next_step("let all clients finish, and start them with the new limit")
    }

    /// Creates the error of a verb that did not answer within the engine's time limit.
    pub fn no_answer(limit: std::time::Duration) -> Self {
        Self::new(
            BackendErrorKind::Unreachable,
            Effect::Unknown,
            format!("no answer within {limit:?}"),
        )
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for BackendError {}

/// The error type of Latchwork. Contention is not an error: `try_acquire` returns `None`.
///
/// The one-line `Display` names the field or key, the store and the next step.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    key: Option<Key>,
    store: Option<Arc<str>>,
    next_step: Option<String>,
    source: Option<BackendError>,
    lost: Option<Lost>,
}

/// The kinds of errors, by what the caller can do about them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ErrorKind {
    /// Timed out; the message names the holder.
    TimedOut,
    /// Another reader, which the message names, is upgrading its hold of the read-write lock. Each
    /// would wait for the other's read hold, so this one has to be released. Or a client of another
    /// kind waits for the hold, and an upgrade or a downgrade cannot go ahead of it; or one that came
    /// before the hold waits, and an upgrade does not go ahead of it.
    UpgradeConflict,
    /// The store did not answer, or answered with an error.
    Unreachable,
    /// The store accepts no more clients now; retry later.
    Busy,
    /// Credentials or rights were refused.
    Denied,
    /// The store does not support this.
    Unsupported,
    /// The key is in use as another kind of lock.
    Mismatch,
    /// A bad key, duration, option or URL; the message names the field.
    Invalid,
    /// The manager was shut down.
    Closed,
    /// The lock was lost before its release, so the work may have overlapped with another holder's.
    /// [`Error::lost`] returns the reason and the time.
    Lost,
    /// This process was forked from the one that connected, and cannot use its locks.
    Forked,
    /// The data in the store is damaged.
    Corrupt,
}

impl Error {
    /// Creates an error from its kind and message.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            key: None,
            store: None,
            next_step: None,
            source: None,
            lost: None,
        }))
    }

    /// Creates a user's error on this key from that of a backend.
    pub fn from_backend(error: BackendError, key: Option<&Key>, store: &Arc<str>) -> Self {
        let kind = match error.kind {
            BackendErrorKind::Unreachable => ErrorKind::Unreachable,
            BackendErrorKind::Denied => ErrorKind::Denied,
            BackendErrorKind::Mismatch => ErrorKind::Mismatch,
            BackendErrorKind::Unsupported => ErrorKind::Unsupported,
            BackendErrorKind::Corrupt => ErrorKind::Corrupt,
            BackendErrorKind::Invalid => ErrorKind::Invalid,
        };
        let mut new = Self::new(kind, error.message.clone()).with_store(store.clone());
        new.0.next_step = error.next_step.clone();
        new.0.key = key.cloned();
        new.0.source = Some(error);
        new
    }

    /// Adds the key.
    #[must_use]
    pub fn with_key(mut self, key: &Key) -> Self {
        self.0.key = Some(key.clone());
        self
    }

    /// Adds the store.
    #[must_use]
    pub fn with_store(mut self, store: Arc<str>) -> Self {
        self.0.store = Some(store);
        self
    }

    /// Adds the suggested next step.
    #[must_use]
    pub fn with_next_step(mut self, step: impl Into<String>) -> Self {
        self.0.next_step = Some(step.into());
        self
    }

    /// Adds the reason and the time of the loss, for the kind [`Lost`](ErrorKind::Lost).
    #[must_use]
    pub fn with_lost(mut self, lost: Lost) -> Self {
        self.0.lost = Some(lost);
        self
    }

    /// Returns the kind, to decide by.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the message alone, without key, store and next step.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the key that the error concerns, if there is one.
    pub fn key(&self) -> Option<&Key> {
        self.0.key.as_ref()
    }

    /// Returns the name of the store that the error concerns, if there is one.
    pub fn store(&self) -> Option<&str> {
        self.0.store.as_deref()
    }

    /// Returns the suggested next step, if any.
    pub fn next_step(&self) -> Option<&str> {
        self.0.next_step.as_deref()
    }

    /// Returns the reason and the time of the loss, for the kind [`Lost`](ErrorKind::Lost).
    pub fn lost(&self) -> Option<Lost> {
        self.0.lost
    }

    /// Returns whether the failed request may have taken effect at the store.
    ///
    /// Latchwork undoes such effects in the background, or they expire with the ttl.
    pub fn may_have_applied(&self) -> bool {
        self.0.source.as_ref().is_some_and(|e| e.effect == Effect::Unknown)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        f.write_str(&inner.message)?;
        match (&inner.key, &inner.store) {
            (Some(key), Some(store)) => write!(f, " (key {:?}, store {store})", key.as_str())?,
            (Some(key), None) => write!(f, " (key {:?})", key.as_str())?,
            (None, Some(store)) => write!(f, " (store {store})")?,
            (None, None) => {}
        }
        if let Some(step) = &inner.next_step {
            write!(f, "; {step}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|e| e as _)
    }
}

/// The loss of a lock: the reason and the time. Final, and not an [`Error`]: the lock worked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Lost {
    /// The reason.
    pub reason: LostReason,
    /// The time, by the holder's own boot clock.
    #[cfg_attr(feature = "serde", serde(rename = "at_ns"))]
    pub at: Moment,
}

impl Lost {
    /// Creates a loss for this reason, at this moment of the holder's boot clock.
    pub const fn new(reason: LostReason, at: Moment) -> Self {
        Self { reason, at }
    }
}

/// Why a hold ended without a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum LostReason {
    /// The validity expired before the store confirmed the hold.
    Expired,
    /// The store says that the claim is not held: a forced release, an eviction, a deleted key.
    Taken,
    /// The session that carried the claim has ended.
    SessionEnded,
    /// The hold reached its `max_hold`.
    MaxHold,
    /// The parent process, from which this one was forked, holds the lock.
    Forked,
}

impl LostReason {
    /// Returns the reason as one word, the same as its form in JSON.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Taken => "taken",
            Self::SessionEnded => "session_ended",
            Self::MaxHold => "max_hold",
            Self::Forked => "forked",
        }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.reason {
            LostReason::Expired => "the lock expired before the store confirmed it again",
            LostReason::Taken => "the store reports that the lock is no longer held",
            LostReason::SessionEnded => "the session that held the lock has ended",
            LostReason::MaxHold => "the lock reached its longest allowed hold (max_hold)",
            LostReason::Forked => {
                "this process was forked from the holder and does not hold the lock"
            }
        })
    }
}

impl StdError for Lost {}

/// Why `ensure_held` failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum NotHeld {
    /// The hold is in doubt until the store confirms it: the machine was paused, or a clock was set
    /// or changed its rate. This may pass; do not use the resource meanwhile.
    Suspect,
    /// The lock was lost. This is final.
    Lost(Lost),
}

impl fmt::Display for NotHeld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotHeld::Suspect => f.write_str("the lock is in doubt until the store confirms it"),
            NotHeld::Lost(lost) => lost.fmt(f),
        }
    }
}

impl StdError for NotHeld {}
