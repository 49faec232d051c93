//! The answers of a store, and its view of a key.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::claim::{ClaimId, Mode, Shape, Stamp};
use crate::error::BackendError;
use crate::holder::Holder;
use crate::key::Key;

/// The answer to a try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attempt {
    /// The claim was granted.
    Granted(Grant),
    /// Not granted, and why. Not an error (B9).
    Blocked(Blocked),
}

/// A grant: its token and its ttl.
///
/// Make one with [`Grant::new`], and set what is known.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The store's number for this grant, below 2^53; the engine derives the fencing token from it.
    pub token: u64,
    /// How long the store keeps the claim, counted from the arrival of the request (B4).
    pub ttl: Duration,
    /// The store's own clock at the answer, if it has one.
    pub store_time: Option<Duration>,
}

impl Grant {
    /// Creates a grant; nothing else is known.
    pub fn new(token: u64, ttl: Duration) -> Self {
        Self { token, ttl, store_time: None }
    }

    /// Returns the grant with this change applied.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

/// Why a claim was not granted, and when to retry.
///
/// Make one with [`Blocked::by`], and set what is known.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    /// When to retry if nothing else happens; `None` if the store cannot know.
    pub retry_after: Option<Duration>,
    /// How many claims are ahead in the queue, if known. Beyond a hundred it may be an upper limit. Holders do not count.
    pub ahead: Option<u32>,
    /// The reason.
    pub cause: Cause,
    /// A holder that blocks the claim, if known. If the cause is [`Cause::Linger`], the holder that
    /// closed the key. A store may read it only at a later try.
    pub holder: Option<Holder>,
    /// Where [`Backend::wait`](crate::Backend::wait) should resume: opaque to everyone but the backend.
    pub resume: Option<Arc<str>>,
    /// The store's own clock at the answer, if it has one.
    pub store_time: Option<Duration>,
}

impl Blocked {
    /// Creates the answer for a claim that this cause blocks; nothing else is known.
    pub fn by(cause: Cause) -> Self {
        let (retry_after, ahead, holder, resume, store_time) = (None, None, None, None, None);
        Self { retry_after, ahead, cause, holder, resume, store_time }
    }

    /// Returns the answer with this change applied.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

/// Why a claim is blocked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum Cause {
    /// Another claim holds the key.
    Held,
    /// The key is free, but another claim is next in the queue.
    Queued,
    /// The last holder asked for the key to stay closed for a while.
    Linger,
    /// The store lost data and waits until every lease that it may have lost has ended.
    Quarantine,
    /// A client of another kind holds the key. Or it waits for the hold that the claim is to replace, and the
    /// claim would wait for it.
    Foreign,
    /// Another reader is upgrading its hold: the claim would wait for it, and it for the claim's own
    /// hold.
    Upgrade,
    /// A claim that came before the hold waits for it, and was overtaken before. The upgrade would overtake it again.
    Earlier,
    /// The hold that the claim was to replace is no longer at the store.
    Gone,
}

/// The reason why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// Retry now.
    Look,
    /// The store pushed a grant.
    Admitted {
        /// The grant.
        grant: Grant,
        /// The stamp of the try that the store counts from.
        stamp: Stamp,
        /// The time from that try to the grant, by the store's clock.
        since_try: Duration,
    },
}

/// The answer to a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// Still held; the ttl was restarted. Make one with [`Renewal::held`].
    #[non_exhaustive]
    Held {
        /// How long the store keeps the claim from the arrival of this request.
        ttl: Duration,
        /// The claim's token, raised to [`Claim::floor`](crate::Claim::floor) if that is larger.
        token: u64,
        /// The store's own clock at the answer, if it has one.
        store_time: Option<Duration>,
    },
    /// Not held. Final (B5).
    Lost,
}

impl Renewal {
    /// Creates the answer for a claim that is still held.
    pub fn held(ttl: Duration, token: u64, store_time: Option<Duration>) -> Self {
        Self::Held { ttl, token, store_time }
    }
}

/// The answer to a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// The claim, held or waiting, was ended. With [`Linger::End`], the key was opened.
    Yes,
    /// There was no claim with this id. With [`Linger::End`], the key was held or not closed.
    NotHeld,
}

/// The answer to a [`resize`](crate::Backend::resize).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resized {
    /// The limit of every claim that holds the key or waits for it was changed. No claim was ended.
    Yes {
        /// The limit before.
        from: u32,
        /// The limit now.
        to: u32,
        /// How many permits are held now. If they exceed the limit, no claim that goes by it is admitted
        /// until enough of them are released.
        held: u64,
    },
    /// No claim holds the key or waits for it, so the key has no limit. Nothing was changed: the next
    /// claim brings its own limit.
    Unused,
}

impl Resized {
    /// Creates the answer for a key with these holders.
    pub fn of(from: u32, to: u32, held: impl IntoIterator<Item = Mode>) -> Self {
        let take = |mode| match mode {
            Mode::Permits { take, .. } => u64::from(take),
            _ => 0,
        };
        Self::Yes { from, to, held: held.into_iter().map(take).sum() }
    }
}

impl fmt::Display for Resized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Yes { from, to, held } = *self else {
            return f.write_str(
                "the key is not in use, so there is no limit to change: the next client sets its own",
            );
        };
        match from == to {
            true => write!(f, "the limit was {to} already")?,
            false => write!(f, "the limit was changed from {from} to {to}")?,
        }
        let (permits, are) = if held == 1 { ("permit", "is") } else { ("permits", "are") };
        write!(f, "; {held} {permits} {are} held")?;
        if held > u64::from(to) {
            let excess = held - u64::from(to);
            write!(
                f,
                ", and no claim that goes by it is admitted until more than {excess} are released"
            )?;
        }
        Ok(())
    }
}

/// How long a released key stays closed to everyone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Linger {
    /// Not at all.
    #[default]
    None,
    /// Until this long after the release reached the store.
    For(Duration),
    /// Opens a key that was released with `For`, in one atomic step. No claim is released, and the
    /// id of the request may be unknown. A held key does not change. Waiters are woken as by a
    /// release (B7), and tokens keep growing (B8).
    End,
}

/// What to inspect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Query {
    /// This key.
    Key(Key),
    /// All keys that start with this text; the empty text means all keys.
    Prefix(Arc<str>),
}

/// The state of a key at the store.
///
/// Make one with [`Snapshot::free`], and set what differs.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The key.
    pub key: Key,
    /// The kind of lock that the key is used as; `None` while no claim holds it or waits for it.
    pub shape: Option<Shape>,
    /// The claims that hold it.
    pub holders: Vec<Party>,
    /// The claims that wait, in the order of the queue if there is one.
    pub waiters: Vec<Party>,
    /// The last token given on the key, or 0 if the store does not know it.
    pub token: u64,
    /// The remaining time for which the key stays closed after a release.
    pub linger: Option<Duration>,
    /// The holder that closed the key, with the time of its release in
    /// [`closed_at`](Holder::closed_at). `None` if the key is not closed, or the store does not
    /// know: a version that left no name closed it or, on Redis, readers or permits held it
    /// meanwhile.
    ///
    /// A hold that ends without a release closes nothing: while its lock delay lasts, it is one of the
    /// [`holders`](Self::holders).
    pub closed_by: Option<Holder>,
    /// Remarks for people: a foreign holder without expiry, the exact name in the store.
    pub notes: Vec<String>,
}

impl Snapshot {
    /// Creates the snapshot of a free key.
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

    /// Creates the entry of a list for a key that cannot be read, so that it does not hide all others. Nobody can acquire
    /// the key, so it is not free: `holder` says so in place of a description.
    pub fn unreadable(key: Key, holder: &str, error: BackendError) -> Self {
        Self::free(key).with(|it| {
            it.holders = vec![Party::new(Mode::Exclusive, holder)];
            it.notes = [Some(error.message), error.next_step].into_iter().flatten().collect();
        })
    }

    /// Returns the snapshot with this change applied.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Returns whether the key is free: no claim holds it or waits for it, and it is not closed.
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
    /// Its description.
    pub holder: Holder,
    /// Its token, if it is a holder.
    pub token: Option<u64>,
    /// Its remaining ttl by the store's clock, rounded down; `None` if it never expires.
    pub remaining: Option<Duration>,
    /// The time since its first try, by the clocks of its process and of this one; `None` if the
    /// store does not keep it.
    pub age: Option<Duration>,
    /// The hold that it waits to replace ([`Claim::beside`](crate::Claim::beside)).
    pub beside: Option<ClaimId>,
}

impl Party {
    /// Creates a claim of a foreign kind, without an id, that never expires.
    pub fn new(mode: Mode, holder: impl Into<Holder>) -> Self {
        let holder = holder.into();
        Self { id: None, mode, holder, token: None, remaining: None, age: None, beside: None }
    }

    /// Returns the claim with this change applied.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}
