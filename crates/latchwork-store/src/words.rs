//! What a store answers, and what it tells of a key.

use std::sync::Arc;
use std::time::Duration;

use crate::claim::{ClaimId, Mode, Shape, Stamp};
use crate::holder::Holder;
use crate::key::Key;

/// The answer to a try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attempt {
    /// The claim is held.
    Granted(Grant),
    /// Someone or something is in the way. Not an error (B9).
    Blocked(Blocked),
}

/// What the store promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The store's number for this grant, below 2^53; the engine makes the fencing token of it.
    pub token: u64,
    /// How long the store keeps the claim, counted from the arrival of the request (B4).
    pub ttl: Duration,
    /// The store's own clock at the answer, where it has one.
    pub store_time: Option<Duration>,
}

/// Why a claim was not granted, and when looking again may pay.
///
/// Make one with [`Blocked::by`], and set what is known.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    /// When to look again if nothing else happens; `None` if the store cannot tell.
    pub retry_after: Option<Duration>,
    /// How many claims are in front in line, where known. Holders do not count.
    pub ahead: Option<u32>,
    /// What is in the way.
    pub cause: Cause,
    /// A holder in the way, where known; if the cause is [`Cause::Linger`], the one that closed the key. A store
    /// may ask for it with a later look only.
    pub holder: Option<Holder>,
    /// Where [`Backend::wait`](crate::Backend::wait) should resume: opaque to everyone but the backend.
    pub resume: Option<Arc<str>>,
    /// The store's own clock at the answer, where it has one.
    pub store_time: Option<Duration>,
}

impl Blocked {
    /// A claim that this is in the way of; nothing else is known.
    pub fn by(cause: Cause) -> Self {
        let (retry_after, ahead, holder, resume, store_time) = (None, None, None, None, None);
        Self { retry_after, ahead, cause, holder, resume, store_time }
    }

    /// The same with this change.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

/// What is in the way of a blocked claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum Cause {
    /// Another claim holds the key.
    Held,
    /// The key is free and its turn belongs to another claim in line.
    Queued,
    /// The last holder asked for the key to stay closed for a while.
    Linger,
    /// The store lost its data and waits until all that it may have forgotten has ended.
    Quarantine,
    /// A client of another kind holds the key.
    Foreign,
}

/// What ended a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// Looking again may pay.
    Look,
    /// The store has granted the claim by itself.
    Admitted {
        /// The grant.
        grant: Grant,
        /// The stamp of the try that the store counts from.
        stamp: Stamp,
        /// How long after that try, by the store's clock, the grant was made.
        since_try: Duration,
    },
}

/// The store's word on a held claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// Still held, ttl counted anew.
    Held {
        /// How long the store keeps the claim from the arrival of this request.
        ttl: Duration,
        /// The claim's token, after [`Claim::floor`](crate::Claim::floor) was respected.
        token: u64,
        /// The store's own clock at the answer, where it has one.
        store_time: Option<Duration>,
    },
    /// Not held. Final (B5).
    Lost,
}

/// The answer to a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// The claim was held or waiting, and is no more; with [`Linger::End`], the key was opened.
    Yes,
    /// There was nothing of this id; with [`Linger::End`], the key was held or not closed.
    NotHeld,
}

/// How long a released key stays closed to everyone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Linger {
    /// Not at all.
    #[default]
    None,
    /// Until this long after the release reached the store.
    For(Duration),
    /// No longer: opens a key that was released with `For`, in one atomic step. No claim is released,
    /// and the id of the request need not be known. A key that is held stays as it is. Waiters are
    /// woken as by a release (B7), and tokens go on rising (B8).
    End,
}

/// What to inspect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Query {
    /// One key.
    Key(Key),
    /// All keys whose text starts so; the empty text means all.
    Prefix(Arc<str>),
}

/// What the store holds for a key.
///
/// Make one with [`Snapshot::free`], and set what differs.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The key.
    pub key: Key,
    /// What the key is used as; `None` while nobody holds it or waits for it.
    pub shape: Option<Shape>,
    /// The claims that hold it.
    pub holders: Vec<Party>,
    /// The claims that wait, in line order where there is one.
    pub waiters: Vec<Party>,
    /// The last token given on the key, where the store knows it; 0 if it does not.
    pub token: u64,
    /// How long the key stays closed after a release that asked for it.
    pub linger: Option<Duration>,
    /// The holder that closed the key, with the time of its release in [`closed_at`](Holder::closed_at). `None` if
    /// the key is not closed, or the store does not know: the key was closed by a version that left no name or, on
    /// Redis, readers or permits held it meanwhile.
    ///
    /// A hold that ends without a release closes nothing: while its lock delay lasts, it is one of the
    /// [`holders`](Self::holders).
    pub closed_by: Option<Holder>,
    /// What a person should know: a foreign holder without expiry, the exact name in the store.
    pub notes: Vec<String>,
}

impl Snapshot {
    /// A key that nobody holds or waits for.
    pub fn free(key: Key) -> Self {
        Self {
            key,
            shape: None,
            holders: Vec::new(),
            waiters: Vec::new(),
            token: 0,
            linger: None,
            closed_by: None,
            notes: Vec::new(),
        }
    }

    /// The same with this change.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Whether nobody holds the key or waits for it, and it is not kept closed.
    pub fn is_free(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty() && self.linger.is_none()
    }
}

/// A claim as `inspect` sees it.
///
/// Make one with [`Party::new`], and set what is known.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Party {
    /// The claim's id; `None` for a holder of a foreign kind.
    pub id: Option<ClaimId>,
    /// Its mode.
    pub mode: Mode,
    /// What it says of itself.
    pub holder: Holder,
    /// Its token, for a holder.
    pub token: Option<u64>,
    /// The rest of its ttl by the store's clock; `None` if it never ends by itself.
    pub remaining: Option<Duration>,
    /// How long ago it first asked, by the clocks of its process and of this one; `None`
    /// if the store does not keep that.
    pub age: Option<Duration>,
}

impl Party {
    /// A claim of a foreign kind, without an id, that never ends by itself.
    pub fn new(mode: Mode, holder: impl Into<Holder>) -> Self {
        let holder = holder.into();
        Self { id: None, mode, holder, token: None, remaining: None, age: None }
    }

    /// The same with this change.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}
