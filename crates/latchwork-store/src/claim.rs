//! A claim: one attempt to hold a key, and its parameters.

use std::fmt;
use std::time::Duration;

use crate::backoff;
use crate::clock::Moment;
use crate::error::{BackendError, BackendErrorKind, Effect};
use crate::holder::Holder;
use crate::key::Key;

/// One attempt to hold a key, from its first try to its release.
///
/// Make one with [`Claim::new`], and set what differs.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The key to lock.
    pub key: Key,
    /// The id of this attempt. Never used again after a release was sent for it.
    pub id: ClaimId,
    /// Which other claims may share the key.
    pub mode: Mode,
    /// Whether a blocked claim takes a place in the queue.
    pub order: Order,
    /// How long the store keeps the claim without a renewal or a repeated try.
    pub ttl: Duration,
    /// The description of the claim for people and other clients.
    pub holder: Holder,
    /// Whether a blocked try may leave anything behind (a place, or a waiter mark).
    pub waits: bool,
    /// The smallest token that the store may give and must remember. 0 sets no limit.
    pub floor: u64,
    /// The client's own send time. Opaque to the store, and echoed by a pushed grant.
    pub stamp: Stamp,
    /// The hold of the same holder that this claim is to replace, on a read-write lock. The claim is
    /// granted beside it, and excludes the others from then on; the client releases it afterwards.
    ///
    /// A write claim beside a read hold is an upgrade. It waits for the other readers, ahead of the
    /// whole queue, and no reader is admitted while it waits. One upgrade of a key is under way at
    /// a time: another is blocked by [`Cause::Upgrade`](crate::Cause::Upgrade) and leaves nothing. So
    /// is one by [`Cause::Earlier`](crate::Cause::Earlier) that would overtake a claim that came before
    /// its hold. A read claim beside a write hold is a downgrade, and is granted at once. Beside a hold that is
    /// no longer at the store, the claim is blocked by [`Cause::Gone`](crate::Cause::Gone) and leaves
    /// nothing.
    pub beside: Option<ClaimId>,
    /// What happens if the key is in use with another limit of permits.
    pub resize: Resize,
}

impl Claim {
    /// Creates a fifo claim that waits, without a description or a floor.
    pub fn new(key: Key, id: ClaimId, mode: Mode, ttl: Duration, stamp: Stamp) -> Self {
        let (holder, order) = (Holder::new(""), Order::Fifo);
        let (waits, floor, beside, resize) = (true, 0, None, Resize::Never);
        Self { key, id, mode, order, ttl, holder, waits, floor, stamp, beside, resize }
    }

    /// Returns the claim with this change applied.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Checks that the claim matches a key that the other claims use as `in_use`, and returns its mode
    /// with the limit of permits that it is judged by (B12). `place` is the mode with which the claim
    /// waits already.
    ///
    /// # Errors
    ///
    /// `Mismatch`, with the words of every store.
    pub fn judged_mode(
        &self,
        in_use: Option<Shape>,
        place: Option<Mode>,
    ) -> Result<Mode, BackendError> {
        let wanted = self.mode.shape();
        let (Shape::Semaphore { of: mine }, None | Some(Shape::Semaphore { .. })) =
            (wanted, in_use)
        else {
            return match in_use {
                Some(shape) if shape != wanted => Err(self.mismatch(shape)),
                _ => Ok(self.mode),
            };
        };
        let others = in_use.and_then(Shape::limit);
        let kept = place.and_then(Mode::limit);
        let of = match self.resize {
            Resize::ToMine => mine,
            Resize::Follow => kept.or(others).unwrap_or(mine),
            Resize::Never => match (kept, in_use) {
                (Some(kept), _) => kept,
                (None, Some(shape)) if shape != wanted => return Err(self.mismatch(shape)),
                _ => mine,
            },
        };
        Ok(self.mode.with_limit(of))
    }

    /// Returns the claim of a follower as a claim of the limit that it finds, for stores whose claims
    /// keep their limits.
    #[must_use]
    pub fn following(&self, in_use: Option<Shape>) -> Self {
        let of = in_use.and_then(Shape::limit);
        self.clone().with(|it| {
            it.mode = of.map_or(it.mode, |of| it.mode.with_limit(of));
            it.resize = Resize::ToMine;
        })
    }

    /// Returns the error for a key that is in use as another shape.
    pub fn mismatch(&self, in_use: Shape) -> BackendError {
        let wanted = self.mode.shape();
        let step = match (in_use, wanted) {
            (Shape::Semaphore { .. }, Shape::Semaphore { .. }) => {
                "use one limit for each key; to change the limit while the key is in use, choose \
                 the resize policy to-mine, or run `latchwork resize`"
            }
            _ => "use one kind of lock for each key",
        };
        BackendError::new(
            BackendErrorKind::Mismatch,
            Effect::NotApplied,
            format!("the key is in use as {in_use}, and this client asks for {wanted}"),
        )
        .with_next_step(step)
    }
}

/// The id of a claim: 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimId(u128);

impl ClaimId {
    /// Draws a fresh id.
    pub fn random() -> Self {
        Self(backoff::random_u128())
    }

    /// Creates an id from its number, as read from a store.
    pub const fn from_u128(value: u128) -> Self {
        Self(value)
    }

    /// Returns the id's number.
    pub const fn as_u128(self) -> u128 {
        self.0
    }

    /// Returns the 32 hexadecimal digits that `Display` writes, in ASCII.
    ///
    /// Every lock writes them: the formatter takes several times as long.
    pub fn digits(self) -> [u8; 32] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 32];
        for (two, byte) in text.chunks_exact_mut(2).zip(self.0.to_be_bytes()) {
            two[0] = DIGITS[usize::from(byte >> 4)];
            two[1] = DIGITS[usize::from(byte & 15)];
        }
        text
    }

    /// Parses the 32 hexadecimal digits that `Display` writes.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        u128::from_str_radix(text, 16).ok().map(Self)
    }
}

impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(str::from_utf8(&self.digits()).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClaimId({self})")
    }
}

/// Which other claims may share the key with a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum Mode {
    /// Shares with no other claim (a mutex).
    Exclusive,
    /// Shares with other readers.
    Read,
    /// Shares with no other reader or writer.
    Write,
    /// Takes some of a limited number of permits.
    Permits {
        /// How many permits this claim takes, at least 1.
        take: u32,
        /// The limit of the key. [`Claim::resize`] says what happens if the key has another one.
        of: u32,
    },
}

impl Mode {
    /// Returns whether no other claim can hold the key beside a claim of this mode.
    pub const fn is_alone(self) -> bool {
        matches!(self, Mode::Exclusive | Mode::Write)
    }

    /// Returns the limit of permits, if it has one.
    pub const fn limit(self) -> Option<u32> {
        match self {
            Mode::Permits { of, .. } => Some(of),
            _ => None,
        }
    }

    /// Returns the mode with this limit of permits, if it has one.
    #[must_use]
    pub const fn with_limit(self, of: u32) -> Self {
        match self {
            Mode::Permits { take, .. } => Mode::Permits { take, of },
            other => other,
        }
    }

    /// Returns the mode as one word: `exclusive`, `read`, `write` or `permits`.
    pub const fn word(self) -> &'static str {
        match self {
            Mode::Exclusive => "exclusive",
            Mode::Read => "read",
            Mode::Write => "write",
            Mode::Permits { .. } => "permits",
        }
    }

    /// Returns the kind of lock that a claim of this mode makes of its key (B12).
    pub const fn shape(self) -> Shape {
        match self {
            Mode::Exclusive => Shape::Mutex,
            Mode::Read | Mode::Write => Shape::ReadWrite,
            Mode::Permits { of, .. } => Shape::Semaphore { of },
        }
    }
}

/// What a claim for permits does if the key is in use with another limit.
///
/// A claim is admitted if the permits held, and its own, are within one limit: the policy chooses
/// which. So the permits held never exceed the largest limit that a client has asked with. Another
/// kind of lock is a mismatch with every policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum Resize {
    /// Another limit is a mismatch. The policy of a limit that never changes.
    #[default]
    Never,
    /// The claim is judged by its own limit, which becomes the limit of the key when the claim is
    /// granted. The policy of a deployment that changes the limit.
    ToMine,
    /// The claim is judged by the limit of the key, and by its own if the key is not in use. A waiter
    /// keeps the limit that the key had when it took its place, until a resize. If it takes more
    /// permits than that limit, it waits until the limit is raised. The policy of a client whose limit
    /// is set by an operator.
    Follow,
}

impl Resize {
    /// All policies.
    pub const ALL: [Self; 3] = [Self::Never, Self::ToMine, Self::Follow];

    /// Returns the policy as one word: `never`, `to-mine` or `follow`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::ToMine => "to-mine",
            Self::Follow => "follow",
        }
    }

    /// Parses the word of a policy.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.word() == word)
    }
}

/// The kind of lock that a key is used as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum Shape {
    /// Exclusive claims.
    Mutex,
    /// Read and write claims.
    ReadWrite,
    /// Permit claims with this limit.
    Semaphore {
        /// The limit.
        of: u32,
    },
}

impl Shape {
    /// Returns the limit of permits, if it has one.
    pub const fn limit(self) -> Option<u32> {
        match self {
            Shape::Semaphore { of } => Some(of),
            _ => None,
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::Mutex => write!(f, "a mutex"),
            Shape::ReadWrite => write!(f, "a read-write lock"),
            Shape::Semaphore { of } => write!(f, "a semaphore of {of} permits"),
        }
    }
}

/// Whether a blocked claim takes a place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// First come, first served, if the store has a queue.
    Fifo,
    /// No place in the queue. A blocked claim that waits leaves only a mark that asks for a
    /// wake-up. It does not overtake live waiters in the queue.
    Barging,
}

/// The client's own send time: nanoseconds of its boot clock, opaque text to a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stamp(Moment);

impl Stamp {
    /// Creates the stamp of a try from the moment before it was sent.
    pub const fn new(sent_at: Moment) -> Self {
        Self(sent_at)
    }

    /// Returns the moment before the try was sent.
    pub const fn sent_at(self) -> Moment {
        self.0
    }

    /// Parses the text that `Display` writes.
    pub fn parse(text: &str) -> Option<Self> {
        text.parse().ok().map(|nanos| Self(Moment::from_nanos(nanos)))
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.as_nanos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_shown_as_32_digits_and_read_again() {
        for number in [0, 1, 0x0123_4567_89ab_cdef, u128::MAX] {
            let id = ClaimId::from_u128(number);
            assert_eq!(id.to_string(), format!("{number:032x}"));
            assert_eq!(ClaimId::parse(&id.to_string()), Some(id));
        }
    }
}
