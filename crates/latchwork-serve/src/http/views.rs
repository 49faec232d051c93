//! The JSON that clients read: holds, locks, their holders and waiters, and events. Made of plain values of the domain.

use std::time::Duration;

use latchwork::FencingToken;
use latchwork_store::{Mode, Shape};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::domain::events::event::LockEvent;
use crate::domain::holds::hold_status::{HoldStatus, Marks};
use crate::domain::lock_status::{LockStatus, PartyStatus};
use crate::domain::names::Names;
use crate::domain::store_claims::StoreClaim;

pub(crate) fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

/// A lock: its holders, and the waiters in the order of the queue.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct LockView {
    /// The name, without the namespace of the service.
    name: String,
    /// The key in the store.
    key: String,
    /// Whether anybody holds it.
    held: bool,
    /// `mutex`, `read-write` or `semaphore`; `null` while nobody holds it or waits for it.
    kind: Option<&'static str>,
    /// The limit of a semaphore.
    #[schema(format = Int64, maximum = 4294967295_u32)]
    permits: Option<u32>,
    /// The last token that was given; a decimal number as text, because it exceeds 2^53.
    token: Option<String>,
    /// Its holders.
    holders: Vec<PartyView>,
    /// Its waiters, in the order of the queue if there is one.
    waiters: Vec<PartyView>,
    /// For how much longer it stays closed after a release (a task that is done for its period).
    linger_ms: Option<u64>,
    /// The holder that closed it.
    closed_by: Option<String>,
    /// Remarks for people.
    notes: Vec<String>,
    /// Changes with the holders and the waiters, and is the same at each instance: wait for another one with `after`.
    version: String,
}

/// A holder or a waiter.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct PartyView {
    /// Its text for people. Text of others: it may hold anything, so show it as text only.
    holder: String,
    /// In an election, what the candidate calls itself.
    candidate: Option<String>,
    /// `exclusive`, `read`, `write` or `permits`.
    mode: &'static str,
    /// How many permits it has or wants.
    #[schema(format = Int64, maximum = 4294967295_u32)]
    permits: Option<u32>,
    /// Its token, if it is a holder.
    token: Option<String>,
    /// For how long it has held or waited, if the store knows.
    age_ms: Option<u64>,
    /// What remains of its lease by the store's clock; `null` if it never ends.
    remaining_ms: Option<u64>,
    /// Whether it is a Latchwork client; others cannot be evicted.
    latchwork: bool,
    /// What it says to readers of the lock: any JSON. Text of others, as `holder`.
    #[schema(value_type = Option<serde_json::Value>)]
    value: Option<Box<RawValue>>,
    /// The lock of the session that keeps it.
    session: Option<String>,
}

/// The holds of a token.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OwnHoldList {
    /// As the store has them, whichever instance granted them.
    holds: Vec<OwnHoldView>,
    /// The name to ask on with (`after`), if there are more.
    next: Option<String>,
}

impl OwnHoldList {
    /// The holds of one part of the list, all of a name in the same part.
    pub(crate) fn new(mut all: Vec<StoreClaim>, names: &Names, limit: usize) -> Self {
        let same = |one: &StoreClaim, other: &StoreClaim| one.key == other.key;
        let ends = |at: usize| at >= all.len() || !same(&all[at - 1], &all[at]);
        let end = (limit..=all.len()).find(|at| ends(*at)).unwrap_or(all.len());
        let has_more = end < all.len();
        all.truncate(end);
        let holds: Vec<_> = all.iter().map(|claim| OwnHoldView::new(claim, names)).collect();
        let next = holds.last().filter(|_| has_more).map(|hold| hold.name.clone());
        Self { holds, next }
    }
}

/// A lock that a token holds.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OwnHoldView {
    /// Its name.
    name: String,
    /// Its fencing token.
    token: String,
    /// `exclusive`, `read`, `write` or `permits`.
    mode: &'static str,
    /// How many permits it has.
    #[schema(format = Int64, maximum = 4294967295_u32)]
    permits: Option<u32>,
    /// Its text for people.
    holder: String,
    /// The lock of the session that keeps it.
    session: Option<String>,
    /// How long it has lasted, if the store knows.
    age_ms: Option<u64>,
    /// What remains of its lease by the store's clock.
    remaining_ms: Option<u64>,
    /// What it says to readers of the lock.
    #[schema(value_type = Option<serde_json::Value>)]
    value: Option<Box<RawValue>>,
}

impl OwnHoldView {
    fn new(claim: &StoreClaim, names: &Names) -> Self {
        let permits = match claim.mode {
            Mode::Permits { take, .. } => Some(take),
            _ => None,
        };
        Self {
            name: names.name_of(claim.key.as_str()),
            token: claim.token.to_string(),
            mode: claim.mode.word(),
            permits,
            holder: claim.holder.text.to_string(),
            session: claim.origin.session.map(|number| number.name()),
            age_ms: claim.age.map(millis),
            remaining_ms: claim.remaining.map(millis),
            value: value(claim.holder.value.as_deref()),
        }
    }
}

/// The value of a holder, as it was written; `None` for what another program has written, and is no JSON.
fn value(text: Option<&str>) -> Option<Box<RawValue>> {
    let text = text.filter(|text| serde_json::from_str::<serde_json::Value>(text).is_ok())?;
    RawValue::from_string(text.to_owned()).ok()
}

impl From<&PartyStatus> for PartyView {
    fn from(party: &PartyStatus) -> Self {
        Self {
            holder: party.holder.clone(),
            candidate: party.candidate.clone(),
            mode: party.mode,
            permits: party.permits,
            token: party.token.map(|token| token.to_string()),
            age_ms: party.age.map(millis),
            remaining_ms: party.remaining.map(millis),
            latchwork: party.is_latchwork,
            value: value(party.value.as_deref()),
            session: party.session.map(|number| number.name()),
        }
    }
}

impl LockView {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl From<&LockStatus> for LockView {
    fn from(lock: &LockStatus) -> Self {
        let (kind, permits) = match lock.shape {
            Some(Shape::Mutex) => (Some("mutex"), None),
            Some(Shape::ReadWrite) => (Some("read-write"), None),
            Some(Shape::Semaphore { of }) => (Some("semaphore"), Some(of)),
            None => (None, None),
        };
        Self {
            name: lock.name.clone(),
            key: lock.key.clone(),
            held: !lock.holders.is_empty(),
            kind,
            permits,
            token: lock.token.map(|token| token.to_string()),
            holders: lock.holders.iter().map(PartyView::from).collect(),
            waiters: lock.waiters.iter().map(PartyView::from).collect(),
            linger_ms: lock.linger.map(millis),
            closed_by: lock.closed_by.clone(),
            notes: lock.notes.clone(),
            version: lock.version.to_string(),
        }
    }
}

/// About how many bytes of JSON a lock is.
pub(crate) fn length_of_lock(lock: &LockStatus) -> usize {
    let length_of_party = |party: &PartyStatus| {
        let value = party.value.as_ref().map_or(0, |value| value.len());
        310 + party.holder.len() + party.candidate.as_ref().map_or(0, String::len) + value
    };
    let parties = lock.holders.iter().chain(&lock.waiters).map(length_of_party);
    160 + lock.name.len() + lock.key.len() + parties.sum::<usize>()
}

/// A lock that is held, and for how long the client may rely on it.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct HoldView {
    /// The id of the hold, to renew and release it: text of letters, digits, `-` and `_`, at most some 16,000. Keep it to
    /// yourself.
    hold: String,
    /// The fencing token for the resource to check, of the first lock; a decimal number as text,
    /// because it exceeds 2^53.
    token: String,
    /// All locks of the hold, each with its token.
    locks: Vec<TokenView>,
    /// 16 hexadecimal digits for this grant. The renewal of a session takes the marks of its holds, added modulo 2^64.
    mark: String,
    /// `held`; or `suspect` while the store has to confirm it: do not use the resource then.
    state: &'static str,
    /// The ttl: a hold that is not renewed for so long ends at the store.
    ttl_ms: u64,
    /// For how long the client may rely on the hold. It counts from a moment **before the request was
    /// sent**, by the client's own clock.
    valid_for_ms: u64,
    /// When to renew: so long after this answer came.
    renew_in_ms: u64,
    /// The period of a task that runs once in each.
    #[serde(skip_serializing_if = "Option::is_none")]
    period: Option<PeriodView>,
}

/// A lock of a hold.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
pub(crate) struct TokenView {
    /// Its name.
    name: String,
    /// Its fencing token.
    token: String,
}

impl TokenView {
    pub(crate) fn new(name: &str, token: FencingToken) -> Self {
        Self { name: name.to_owned(), token: token.to_string() }
    }
}

/// A period, in milliseconds since 1970.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct PeriodView {
    /// When it began.
    start_ms: u64,
    /// When it ends.
    end_ms: u64,
}

impl From<HoldStatus> for HoldView {
    fn from(hold: HoldStatus) -> Self {
        let mark = Marks::of(&hold.locks).to_string();
        let locks: Vec<_> =
            hold.locks.into_iter().map(|(name, token)| TokenView::new(&name, token)).collect();
        Self {
            hold: hold.id,
            token: locks.first().map(|lock| lock.token.clone()).unwrap_or_default(),
            locks,
            mark,
            state: if hold.is_suspect { "suspect" } else { "held" },
            ttl_ms: millis(hold.ttl),
            valid_for_ms: millis(hold.valid_for),
            renew_in_ms: millis(hold.renew_in),
            period: hold.period.map(|period| PeriodView {
                start_ms: millis(period.start),
                end_ms: millis(period.end),
            }),
        }
    }
}

/// One event, as the data of a server-sent event.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct EventView<'a> {
    /// Its number: grows by one, from a random number at each start of the service.
    id: u64,
    /// `granted`, `waiting`, `withdrawn`, `released`, `lost`, `handed_over`, `suspect`, `forced`, `unreachable`,
    /// `reachable`, `closing`.
    event: &'static str,
    /// The name of the lock; empty if it is about the service (`closing`).
    name: &'a str,
    /// The token of the hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    /// The token of the hold before, if it was handed over.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    /// The holder's text for people: anything, so show it as text only.
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<&'a str>,
    /// `exclusive`, `read`, `write` or `permits`.
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<&'static str>,
    /// Why it was lost: `not_renewed`, `forced`, `expired`, `taken`, `session_ended`, `max_hold`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    /// Who took the lock away: the name of an administrator's token.
    #[serde(skip_serializing_if = "Option::is_none")]
    forced_by: Option<&'a str>,
    /// Why, in the administrator's words: anything, so show it as text only.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
    /// The holder's ttl in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
    /// How long the hold has lasted, or the waiter has waited, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    lasted_ms: Option<u64>,
    /// How many wait for the lock now, if the store was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiters: Option<usize>,
    /// `service` if it happened to a lock of this service; `store` if it was seen in the store, up to
    /// some seconds later, and may be a release as well as a loss.
    by: &'static str,
    /// When, by the wall clock of the service: milliseconds since 1970.
    at_ms: u64,
}

impl<'a> From<&'a LockEvent> for EventView<'a> {
    fn from(event: &'a LockEvent) -> Self {
        Self {
            id: event.id,
            event: event.word,
            name: &event.name,
            token: event.token.map(|token| token.to_string()),
            from: event.from.map(|token| token.to_string()),
            holder: event.holder.as_deref(),
            mode: event.mode,
            reason: event.reason,
            forced_by: event.forced.as_ref().map(|forced| &*forced.by),
            why: event.forced.as_ref().map(|forced| &*forced.why),
            ttl_ms: event.ttl.map(millis),
            lasted_ms: event.lasted.map(millis),
            waiters: event.waiters,
            by: event.by,
            at_ms: event.at_millis,
        }
    }
}
