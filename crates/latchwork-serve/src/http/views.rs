//! What clients read: locks, holders and waiters as JSON.

use std::time::Duration;

use latchwork::FencingToken;
use latchwork::store::{Holder, Mode, Party, Shape, Snapshot};
use serde::Serialize;
use utoipa::ToSchema;

/// A lock: its holders, and the waiters in the order of the queue.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct LockView {
    /// The name, without the namespace of the service.
    pub(crate) name: String,
    /// The key in the store.
    pub(crate) key: String,
    /// Whether anybody holds it.
    pub(crate) held: bool,
    /// `mutex`, `read-write` or `semaphore`; `null` while nobody holds it or waits for it.
    pub(crate) kind: Option<&'static str>,
    /// The limit of a semaphore.
    pub(crate) permits: Option<u32>,
    /// The last token that was given; a decimal number as text, because it exceeds 2^53.
    pub(crate) token: Option<String>,
    /// Its holders.
    pub(crate) holders: Vec<PartyView>,
    /// Its waiters, in the order of the queue if there is one.
    pub(crate) waiters: Vec<PartyView>,
    /// For how much longer it stays closed after a release (a task that is done for its period).
    pub(crate) linger_ms: Option<u64>,
    /// The holder that closed it.
    pub(crate) closed_by: Option<String>,
    /// Remarks for people.
    pub(crate) notes: Vec<String>,
}

/// A holder or a waiter.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct PartyView {
    /// Its text for people. Text of others: it may hold anything, so show it as text only.
    pub(crate) holder: String,
    /// In an election, what the candidate calls itself.
    pub(crate) candidate: Option<String>,
    /// `exclusive`, `read`, `write` or `permits`.
    pub(crate) mode: &'static str,
    /// How many permits it has or wants.
    pub(crate) permits: Option<u32>,
    /// Its token, if it is a holder.
    pub(crate) token: Option<String>,
    /// For how long it has held or waited, if the store knows.
    pub(crate) age_ms: Option<u64>,
    /// What remains of its lease by the store's clock; `null` if it never ends.
    pub(crate) remaining_ms: Option<u64>,
    /// Whether it is a Latchwork client; others cannot be evicted.
    pub(crate) latchwork: bool,
}

pub(crate) fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

impl From<&Party> for PartyView {
    fn from(party: &Party) -> Self {
        let permits = match party.mode {
            Mode::Permits { take, .. } => Some(take),
            _ => None,
        };
        Self {
            holder: party.holder.text.to_string(),
            candidate: party.holder.candidate.as_deref().map(str::to_owned),
            mode: party.mode.word(),
            permits,
            token: party.token.map(|grant| FencingToken::from_grant(grant).to_string()),
            age_ms: party.age.map(millis),
            remaining_ms: party.remaining.map(millis),
            latchwork: party.id.is_some(),
        }
    }
}

impl LockView {
    /// The lock whose name in the service's namespace is `name`.
    pub(crate) fn new(name: &str, seen: &Snapshot) -> Self {
        let (kind, permits) = match seen.shape {
            Some(Shape::Mutex) => (Some("mutex"), None),
            Some(Shape::ReadWrite) => (Some("read-write"), None),
            Some(Shape::Semaphore { of }) => (Some("semaphore"), Some(of)),
            None => (None, None),
        };
        Self {
            name: name.to_owned(),
            key: seen.key.as_str().to_owned(),
            held: !seen.holders.is_empty(),
            kind,
            permits,
            token: (seen.token != 0).then(|| FencingToken::from_grant(seen.token).to_string()),
            holders: seen.holders.iter().map(PartyView::from).collect(),
            waiters: seen.waiters.iter().map(PartyView::from).collect(),
            linger_ms: seen.linger.map(millis),
            closed_by: seen.closed_by.as_ref().map(text_of),
            notes: seen.notes.clone(),
        }
    }
}

impl PartyView {
    /// About how many bytes of JSON it is.
    fn length(&self) -> usize {
        220 + self.holder.len() + self.candidate.as_ref().map_or(0, String::len)
    }
}

impl LockView {
    /// About how many bytes of JSON it is.
    pub(crate) fn length(&self) -> usize {
        let parties = self.holders.iter().chain(&self.waiters).map(PartyView::length);
        160 + self.name.len() + self.key.len() + parties.sum::<usize>()
    }
}

fn text_of(holder: &Holder) -> String {
    holder.text.to_string()
}
