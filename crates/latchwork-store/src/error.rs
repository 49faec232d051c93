//! Errors: what a backend says, and what a user reads.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::clock::Moment;
use crate::key::Key;

/// What went wrong inside a backend's verb, and whether it may have taken effect.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BackendError {
    /// What went wrong.
    pub kind: BackendErrorKind,
    /// Whether the store may have done what was asked.
    pub effect: Effect,
    /// What happened, for people: the server's words, the path, the node.
    pub message: String,
    /// What a person can do about it, where known.
    pub next_step: Option<String>,
}

/// The kinds of backend errors. Contention is not among them (B9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendErrorKind {
    /// The store did not answer, or not well enough.
    Unreachable,
    /// Credentials or rights were refused.
    Denied,
    /// The key is in use as another kind of lock (B12).
    Mismatch,
    /// This store cannot do what was asked.
    Unsupported,
    /// What the store holds is damaged.
    Corrupt,
    /// This store cannot take the key, the duration or the option; the message names which.
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
    /// An error with its kind, effect and message.
    pub fn new(kind: BackendErrorKind, effect: Effect, message: impl Into<String>) -> Self {
        Self { kind, effect, message: message.into(), next_step: None }
    }

    /// Adds what a person can do about it.
    #[must_use]
    pub fn next_step(mut self, step: impl Into<String>) -> Self {
        self.next_step = Some(step.into());
        self
    }

    /// The same error, of a request that had this effect.
    #[must_use]
    pub fn with_effect(self, effect: Effect) -> Self {
        Self { effect, ..self }
    }

    /// The verb gave no answer within core's time limit.
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

/// What a user of Latchwork can meet. Contention is not an error: `try_acquire` answers `None`.
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
    /// Not admitted before the deadline; the message names the holder.
    TimedOut,
    /// The store did not answer well enough.
    Unreachable,
    /// The store takes no more clients now; trying again later may pay.
    Busy,
    /// Credentials or rights were refused.
    Denied,
    /// This backend cannot do this.
    Unsupported,
    /// The key is in use as another kind of lock.
    Mismatch,
    /// A bad key, duration, option or URL; the message names the field.
    Invalid,
    /// The manager was shut down.
    Closed,
    /// The hold that was to be released had been lost before: what was done under it may have
    /// overlapped with another holder's work. [`Error::lost`] says why and when.
    Lost,
    /// This process was forked from the one that connected, and cannot use its locks.
    Forked,
    /// What the store holds is damaged.
    Corrupt,
}

impl Error {
    /// An error with its kind and message.
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

    /// The error of a backend, on this key, seen by a user.
    pub fn from_backend(error: BackendError, key: Option<&Key>, store: &Arc<str>) -> Self {
        let kind = match error.kind {
            BackendErrorKind::Unreachable => ErrorKind::Unreachable,
            BackendErrorKind::Denied => ErrorKind::Denied,
            BackendErrorKind::Mismatch => ErrorKind::Mismatch,
            BackendErrorKind::Unsupported => ErrorKind::Unsupported,
            BackendErrorKind::Corrupt => ErrorKind::Corrupt,
            BackendErrorKind::Invalid => ErrorKind::Invalid,
        };
        let mut new = Self::new(kind, error.message.clone()).store(store.clone());
        new.0.next_step = error.next_step.clone();
        new.0.key = key.cloned();
        new.0.source = Some(error);
        new
    }

    /// Names the key.
    #[must_use]
    pub fn key(mut self, key: &Key) -> Self {
        self.0.key = Some(key.clone());
        self
    }

    /// Names the store.
    #[must_use]
    pub fn store(mut self, store: Arc<str>) -> Self {
        self.0.store = Some(store);
        self
    }

    /// Says what a person can do about it.
    #[must_use]
    pub fn next_step(mut self, step: impl Into<String>) -> Self {
        self.0.next_step = Some(step.into());
        self
    }

    /// Says why and when the hold was lost, for the kind [`Lost`](ErrorKind::Lost).
    #[must_use]
    pub fn with_lost(mut self, lost: Lost) -> Self {
        self.0.lost = Some(lost);
        self
    }

    /// The kind, to decide by.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The message alone, without key, store and next step.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The key that it is about, where there is one.
    #[cfg(feature = "serde")]
    pub(crate) fn on_key(&self) -> Option<&Key> {
        self.0.key.as_ref()
    }

    /// The store that it is about, where there is one.
    #[cfg(feature = "serde")]
    pub(crate) fn at_store(&self) -> Option<&str> {
        self.0.store.as_deref()
    }

    /// What a person can do about it, where known.
    pub fn hint(&self) -> Option<&str> {
        self.0.next_step.as_deref()
    }

    /// Why and when a hold was lost, for the kind [`Lost`](ErrorKind::Lost).
    pub fn lost(&self) -> Option<Lost> {
        self.0.lost
    }

    /// Whether what was asked may have taken effect at the store nevertheless.
    ///
    /// Latchwork itself undoes such effects in the background, at the latest by the ttl.
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

/// The end of a hold that was not a release. Final, and not an [`Error`]: the lock worked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Lost {
    /// Why.
    pub reason: LostReason,
    /// When, by the holder's own boot clock.
    #[cfg_attr(feature = "serde", serde(rename = "at_ns"))]
    pub at: Moment,
}

impl Lost {
    /// An end for this reason, at this moment of the holder's boot clock.
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
    /// The validity ran out without word from the store.
    Expired,
    /// The store says that the claim is not held: forced release, eviction, a deleted key.
    Taken,
    /// The session that carried the claim has ended.
    SessionEnded,
    /// The hold reached its `max_hold`.
    MaxHold,
    /// The hold is that of the process that this one was forked from, and goes on there.
    Forked,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.reason {
            LostReason::Expired => "the lock expired before the store confirmed it again",
            LostReason::Taken => "the store reports that the lock is no longer held",
            LostReason::SessionEnded => "the session that held the lock has ended",
            LostReason::MaxHold => "the lock reached its longest allowed hold (max_hold)",
            LostReason::Forked => "the lock is held by the process that this one was forked from",
        })
    }
}

impl StdError for Lost {}

/// Why a guard does not vouch for its lock right now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum NotHeld {
    /// In doubt: the machine was paused, or a clock was set or ran at another rate, and the store
    /// has not confirmed the hold yet. May pass; do not touch the resource meanwhile.
    Suspect,
    /// Over for good.
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
