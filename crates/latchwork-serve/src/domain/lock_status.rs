//! A lock at one moment: its holders, and the waiters in the order of the queue.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use latchwork::FencingToken;
use latchwork_store::{Mode, Party, Shape, Snapshot};
use sha2::{Digest, Sha256};

use super::holds::origin::{Origin, SessionNumber};

/// A lock as the store and the queue of this service show it.
#[derive(Debug, Clone)]
pub(crate) struct LockStatus {
    /// The name in the namespace of the service.
    pub(crate) name: String,
    /// The key in the store.
    pub(crate) key: String,
    /// The kind of lock; `None` while nobody holds it or waits for it.
    pub(crate) shape: Option<Shape>,
    /// The last token that was given.
    pub(crate) token: Option<FencingToken>,
    pub(crate) holders: Vec<PartyStatus>,
    /// The waiters, in the order of the queue if there is one.
    pub(crate) waiters: Vec<PartyStatus>,
    /// For how much longer it stays closed after a release.
    pub(crate) linger: Option<Duration>,
    /// The holder that closed it.
    pub(crate) closed_by: Option<String>,
    /// Remarks for people.
    pub(crate) notes: Vec<String>,
    pub(crate) version: Version,
}

/// A number that changes with the holders and the waiters at the store, and is the same for all readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version(u64);

impl Version {
    fn of(seen: &Snapshot) -> Self {
        // No time is part of it: what remains of a lease always changes.
        let party = |party: &Party| match party.id {
            Some(id) => format!("{id} {:?} {:?}", party.mode, party.token),
            None => format!("{} {:?} {:?}", party.holder.text, party.mode, party.token),
        };
        let all = |parties: &[Party]| {
            let mut all: Vec<_> = parties.iter().map(party).collect();
            // Not every store has an order.
            all.sort_unstable();
            all
        };
        let (shape, token, is_closed) = (seen.shape, seen.token, seen.linger.is_some());
        let (holders, waiters) = (all(&seen.holders), all(&seen.waiters));
        let text = format!("{shape:?} {token} {is_closed} {holders:?} {waiters:?}");
        let [a, b, c, d, e, f, g, h, ..]: [u8; 32] = Sha256::digest(text.as_bytes()).into();
        Self(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }
}

impl Version {
    /// Reads what its `Display` wrote.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let is_plain = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u64::from_str_radix(text, 16).ok().filter(|_| is_plain).map(Self)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl LockStatus {
    /// The lock whose name in the service's namespace is `name`.
    pub(crate) fn new(name: &str, seen: &Snapshot) -> Self {
        let party = |party| PartyStatus::new(name, party);
        Self {
            name: name.to_owned(),
            key: seen.key.as_str().to_owned(),
            shape: seen.shape,
            token: (seen.token != 0).then(|| FencingToken::from_grant(seen.token)),
            holders: seen.holders.iter().map(party).collect(),
            waiters: seen.waiters.iter().map(party).collect(),
            linger: seen.linger,
            closed_by: seen.closed_by.as_ref().map(|holder| holder.text.to_string()),
            notes: seen.notes.clone(),
            version: Version::of(seen),
        }
    }

    /// Whether nobody holds it or waits for it, and it is not closed.
    pub(crate) fn is_free(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty() && self.linger.is_none()
    }
}

/// A holder or a waiter.
#[derive(Debug, Clone)]
pub(crate) struct PartyStatus {
    /// The text for people. Clients choose it freely.
    pub(crate) holder: String,
    /// The candidate's text in an election.
    pub(crate) candidate: Option<String>,
    /// The mode as one word.
    pub(crate) mode: &'static str,
    /// The number of permits that it has or wants, if it is known.
    pub(crate) permits: Option<u32>,
    /// The token of a holder.
    pub(crate) token: Option<FencingToken>,
    /// For how long it has held or waited, if that is known.
    pub(crate) age: Option<Duration>,
    /// What remains of the lease by the store's clock; `None` if it never ends.
    pub(crate) remaining: Option<Duration>,
    /// Whether it is a Latchwork client.
    pub(crate) is_latchwork: bool,
    /// What it says to readers of the lock, as JSON.
    pub(crate) value: Option<Arc<str>>,
    /// The session that keeps it.
    pub(crate) session: Option<SessionNumber>,
}

impl PartyStatus {
    /// The holder or waiter of the lock with this name.
    pub(crate) fn new(lock: &str, party: &Party) -> Self {
        let session = Origin::read(&party.holder).and_then(|origin| origin.session);
        let permits = match party.mode {
            Mode::Permits { take, .. } => Some(take),
            _ => None,
        };
        Self {
            holder: party.holder.text.to_string(),
            candidate: party.holder.candidate.as_deref().map(str::to_owned),
            mode: party.mode.word(),
            permits,
            token: party.token.map(FencingToken::from_grant),
            age: party.age,
            remaining: party.remaining,
            is_latchwork: party.id.is_some(),
            value: party.holder.value.clone(),
            // A session does not keep itself.
            session: session.filter(|number| number.name() != lock),
        }
    }
}
