//! The boundary between Latchwork and a store: five verbs and their words.
//!
//! Read this page to write a backend, or to understand the whole system. Everything above it
//! (waiting, validity, renewal, handover, primitives) is written once, in this crate; everything
//! below it is I/O.
//!
//! Three ideas carry the trait:
//!
//! 1. **A claim has a name given by the client.** Every verb is idempotent by [`Claim::id`], so a
//!    retry after a lost answer, keeping a place in line, finding one's own node again and
//!    withdrawing are the same verb called again.
//! 2. **Trying and waiting are apart.** [`Backend::try_acquire`] is atomic and immediate;
//!    [`Backend::wait`] only says that looking again may pay.
//! 3. **Liveness is a duration counted from the request.** No backend computes a deadline; core
//!    does, from the moment before it called the verb.
//!
//! # The contract
//!
//! `docs/contract.md` explains each rule; each is also the name of a conformance test.
//!
//! | rule | promise |
//! | --- | --- |
//! | B1 atomic | no two incompatible claims are granted at once, by the store's own reckoning |
//! | B2 idempotent | `try_acquire` again with the same id gives the same place, or the same grant, same token, ttl counted anew |
//! | B3 place | a blocked fifo claim keeps its place until released, or until its ttl passes without being repeated; `waits = false` leaves nothing |
//! | B4 full measure | a grant or renewal lasts at least its `ttl` from the moment the request reached the store |
//! | B5 no revival | `renew_all` answers `Lost` only on the store's word, and never brings a lost claim back |
//! | B6 own claim only | `release` and `renew_all` touch nothing but this id; `release` is idempotent and also withdraws a waiter; with [`Linger::End`] it opens a closed key and touches no claim |
//! | B7 wake-ups | with `push`, `wait` returns soon after this claim may be admitted, also when that happened between the try and the wait; never at once again and again |
//! | B8 tokens | if one grant on a key ended before another began, the later token is greater; none is used twice |
//! | B9 honest errors | contention is not an error; `NotApplied` only when certain |
//! | B10 droppable | dropping a verb's future anywhere is safe for the process and counts as an unknown effect |
//! | B11 decides nothing by time | what must run runs on the [`Io`](crate::Io) given at connect, ends when the backend is dropped, and never renews a claim that core has not renewed within its ttl |
//! | B12 shape | a key used as two kinds of lock, or with two permit limits, answers `Mismatch` |
//! | B13 keys | distinct keys never collide (case, separators, length) |
//! | B14 inspect | changes nothing |
//! | B15 no ghosts | what an attempt leaves in the store, even one that lands after its own release, is gone within its ttl |

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::answers::Answers;
use crate::backoff;
use crate::capabilities::Capabilities;
use crate::clock::Moment;
use crate::doorbell::Doorbell;
use crate::doubts::Doubts;
use crate::error::BackendError;
use crate::key::Key;
use crate::lifeline::Lifeline;

/// The future a verb returns: boxed, so that [`Backend`] is object safe.
pub type Verb<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A store that can hold claims on keys.
///
/// The futures are polled on the caller's task, on any runtime. Connections, timers and streams
/// belong on the [`Io`](crate::Io) that the backend was given when it was made; they must end when
/// the backend is dropped.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// What this store can do. The answer never changes over the life of the backend.
    fn capabilities(&self) -> Capabilities;

    /// Asks the store, in one atomic step, to grant `claim` now.
    ///
    /// # To ensure correctness
    ///
    /// - The same id again is the same claim (B2): a held one keeps its token and starts its ttl
    ///   anew, a waiting one keeps its place.
    /// - The token of a new grant is greater than every earlier one on the key and at least
    ///   [`Claim::floor`] (B8).
    /// - With [`Claim::waits`] false nothing is left behind when the answer is `Blocked` (B3).
    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Attempt, BackendError>>;

    /// Returns when trying again may pay.
    ///
    /// Called after `Blocked`, with that answer. It may return early, but not at once again and
    /// again; it may also never return: core looks again by itself when `retry_after` is over and
    /// every third of the claim's ttl, and drops this future then (B7, B10).
    fn wait<'a>(
        &'a self,
        claim: &'a Claim,
        blocked: &'a Blocked,
    ) -> Verb<'a, Result<Wake, BackendError>>;

    /// Starts the ttl of held claims anew; one answer for each claim, in order.
    ///
    /// # To ensure correctness
    ///
    /// - `Lost` is the store's word that the claim is not held; not knowing is an `Err` (B5).
    /// - Never re-creates a claim, whatever happened to it (B5).
    /// - A claim's [`Claim::floor`], where larger than its token, raises the token that the store
    ///   remembers for the key, only while this claim is held; the answer tells the result.
    fn renew_all<'a>(&'a self, claims: &'a [Claim])
    -> Verb<'a, Vec<Result<Renewal, BackendError>>>;

    /// As [`Self::renew_all`], and says each answer as soon as it is known.
    ///
    /// Core calls this one. It keeps what was said when it gives the rest up, and waits longer for a
    /// call that goes on answering. So a store that asks for claims one by one, or that can be late
    /// with some of them, should say what it knows; by default all is said in the end.
    fn renew_each<'a>(&'a self, claims: &'a [Claim], answers: &'a Answers) -> Verb<'a, ()> {
        Box::pin(async move {
            for (claim, answer) in self.renew_all(claims).await.into_iter().enumerate() {
                answers.say(claim, answer);
            }
        })
    }

    /// Ends `claim`, held or waiting, and nothing else (B6).
    ///
    /// With [`Linger::For`], a claim that was held leaves the key closed to everyone for that long.
    /// [`Linger::End`] is another request: it ends no claim, and opens a key that is closed.
    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        linger: Linger,
    ) -> Verb<'a, Result<Released, BackendError>>;

    /// Whether verbs may block the thread that polls them, as file I/O does.
    ///
    /// Core then polls those that nobody waits for on threads of their own, so that one that stalls
    /// delays no renewal of another key. The answer never changes.
    fn blocks(&self) -> bool {
        false
    }

    /// Whether a renewal may ask for another ttl than the try that was granted did. The answer never
    /// changes.
    fn ttl_may_change(&self) -> bool {
        false
    }

    /// How many tries on one key core has under way at a time, where a try reads the whole line of
    /// the key; all of them if there is no number. Those that wait, and those that were just woken,
    /// have as many each. The answer never changes.
    ///
    /// Claims that share a place in the process's own line have one try at a time anyway.
    fn tries_at_once(&self) -> Option<usize> {
        None
    }

    /// What keeps the session alive in the eyes of the store, where that is a descriptor.
    fn lifeline(&self) -> Option<Lifeline> {
        None
    }

    /// Where a blocked thread can wait for the store's wake-ups by itself.
    fn doorbell(&self) -> Option<Doorbell> {
        None
    }

    /// Where this backend says which claims may have ended, if its store tells of that by itself.
    fn doubts(&self) -> Option<&Doubts> {
        None
    }

    /// Tells who holds and who waits, and changes nothing (B14).
    ///
    /// For one key the answer has exactly one entry, free or not; for a prefix it has the keys
    /// that are held, waited for or lingering, sorted by key.
    fn inspect<'a>(&'a self, query: &'a Query) -> Verb<'a, Result<Vec<Snapshot>, BackendError>>;
}

/// One attempt to hold a key, from its first try to its release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// What is locked.
    pub key: Key,
    /// The name of this attempt. Never used again after a release was sent for it.
    pub id: ClaimId,
    /// With whom the claim may share the key.
    pub mode: Mode,
    /// Whether a blocked claim takes a place in line.
    pub order: Order,
    /// How long the store keeps the claim without hearing of it.
    pub ttl: Duration,
    /// Who this is, for people: host, process, purpose.
    pub holder: Arc<str>,
    /// Whether a blocked try may leave anything behind (a place, or a waiter mark).
    pub waits: bool,
    /// The least token that the store must give and remember; 0 asks for nothing.
    pub floor: u64,
    /// The client's own send time. Opaque to the store, echoed by a pushed grant.
    pub stamp: Stamp,
}

/// The name of a claim: 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimId(u128);

impl ClaimId {
    /// Draws a fresh id.
    pub fn random() -> Self {
        Self(backoff::random_u128())
    }

    /// Makes an id from its number, as read from a store.
    pub const fn from_u128(value: u128) -> Self {
        Self(value)
    }

    /// The id's number.
    pub const fn as_u128(self) -> u128 {
        self.0
    }

    /// The 32 hexadecimal digits that `Display` writes, in ASCII.
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

    /// Reads the 32 hexadecimal digits that `Display` writes.
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

/// With whom a claim may share its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Alone (a mutex).
    Exclusive,
    /// With other readers.
    Read,
    /// Alone among readers and writers.
    Write,
    /// Takes some of a limited number of permits.
    Permits {
        /// How many permits this claim takes, at least 1.
        take: u32,
        /// The limit of the key; two claims with different limits do not match.
        of: u32,
    },
}

impl Mode {
    /// The kind of lock that a claim of this mode makes of its key (B12).
    pub const fn shape(self) -> Shape {
        match self {
            Mode::Exclusive => Shape::Mutex,
            Mode::Read | Mode::Write => Shape::ReadWrite,
            Mode::Permits { of, .. } => Shape::Semaphore { of },
        }
    }
}

/// The kind of lock a key is used as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::Mutex => write!(f, "a mutex"),
            Shape::ReadWrite => write!(f, "a read-write lock"),
            Shape::Semaphore { of } => write!(f, "a semaphore of {of} permits"),
        }
    }
}

/// Whether a blocked claim takes a place in line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// First come, first served, wherever the store can queue.
    Fifo,
    /// No place: a blocked claim that waits leaves only a mark that asks for a wake-up. A barging
    /// try does not overtake a live line.
    Barging,
}

/// The client's own send time: nanoseconds of its boot clock, opaque text to a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stamp(Moment);

impl Stamp {
    /// Stamps a try with the moment before it was sent.
    pub const fn new(sent_at: Moment) -> Self {
        Self(sent_at)
    }

    /// The moment before the try was sent.
    pub const fn sent_at(self) -> Moment {
        self.0
    }

    /// Reads the text that `Display` writes.
    pub fn parse(text: &str) -> Option<Self> {
        text.parse().ok().map(|nanos| Self(Moment::from_nanos(nanos)))
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.as_nanos())
    }
}

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
    /// The store's number for this grant, below 2^53; core makes the fencing token of it.
    pub token: u64,
    /// How long the store keeps the claim, counted from the arrival of the request (B4).
    pub ttl: Duration,
    /// The store's own clock at the answer, where it has one.
    pub store_time: Option<Duration>,
}

/// Why a claim was not granted, and when looking again may pay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    /// When to look again if nothing else happens; `None` if the store cannot tell.
    pub retry_after: Option<Duration>,
    /// How many claims are in front in line, where known. Holders do not count.
    pub ahead: Option<u32>,
    /// What is in the way.
    pub cause: Cause,
    /// The text of a holder in the way, where known. A store may ask for it with a later look only.
    pub holder: Option<Arc<str>>,
    /// Where [`Backend::wait`] should resume: opaque to everyone but the backend.
    pub resume: Option<Arc<str>>,
    /// The store's own clock at the answer, where it has one.
    pub store_time: Option<Duration>,
}

/// What is in the way of a blocked claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
        /// The claim's token, after [`Claim::floor`] was respected.
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
            notes: Vec::new(),
        }
    }

    /// Whether nobody holds the key or waits for it, and it is not kept closed.
    pub fn is_free(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty() && self.linger.is_none()
    }
}

/// A claim as `inspect` sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Party {
    /// The claim's id; `None` for a holder of a foreign kind.
    pub id: Option<ClaimId>,
    /// Its mode.
    pub mode: Mode,
    /// Its text for people.
    pub holder: Arc<str>,
    /// Its token, for a holder.
    pub token: Option<u64>,
    /// What is left of its ttl by the store's clock; `None` if it never ends by itself.
    pub remaining: Option<Duration>,
    /// How long ago it first asked, by the wall clocks of its process and of whoever looks; `None`
    /// if the store does not keep that.
    pub age: Option<Duration>,
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
