//! The JSON of a key's state, as `latchwork show --json` prints it.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{ClaimId, FencingToken, Holder, Key, Mode, Party, Shape, Snapshot};

fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

/// The number of the store's grant as the token that holders have seen.
fn token(grant: u64) -> FencingToken {
    FencingToken::from_grant(grant)
}

#[derive(Serialize, Deserialize)]
struct HolderForm {
    text: Arc<str>,
    usual_hold_ms: Option<u64>,
    lock_delay_ms: Option<u64>,
    candidate: Option<Arc<str>>,
    closed_at_ms: Option<u64>,
}

impl From<&Holder> for HolderForm {
    fn from(holder: &Holder) -> Self {
        Self {
            text: holder.text.clone(),
            usual_hold_ms: holder.usual_hold.map(millis),
            lock_delay_ms: holder.lock_delay.map(millis),
            candidate: holder.candidate.clone(),
            closed_at_ms: holder.closed_at.map(millis),
        }
    }
}

impl From<HolderForm> for Holder {
    fn from(form: HolderForm) -> Self {
        Holder::new(form.text).with(|it| {
            it.usual_hold = form.usual_hold_ms.map(Duration::from_millis);
            it.lock_delay = form.lock_delay_ms.map(Duration::from_millis);
            it.candidate = form.candidate;
            it.closed_at = form.closed_at_ms.map(Duration::from_millis);
        })
    }
}

impl Serialize for Holder {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        HolderForm::from(self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Holder {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        HolderForm::deserialize(deserializer).map(Holder::from)
    }
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ModeWord {
    Exclusive,
    Read,
    Write,
    Permits,
}

#[derive(Serialize, Deserialize)]
struct PartyForm {
    id: Option<ClaimId>,
    holder: Arc<str>,
    candidate: Option<Arc<str>>,
    usual_hold_ms: Option<u64>,
    lock_delay_ms: Option<u64>,
    mode: ModeWord,
    permits: Option<u32>,
    of: Option<u32>,
    token: Option<FencingToken>,
    age_ms: Option<u64>,
    remaining_ms: Option<u64>,
}

impl Serialize for Party {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (mode, permits, of) = match self.mode {
            Mode::Exclusive => (ModeWord::Exclusive, None, None),
            Mode::Read => (ModeWord::Read, None, None),
            Mode::Write => (ModeWord::Write, None, None),
            Mode::Permits { take, of } => (ModeWord::Permits, Some(take), Some(of)),
        };
        // A holder or waiter has not closed the key yet.
        let HolderForm { text: holder, usual_hold_ms, lock_delay_ms, candidate, closed_at_ms: _ } =
            HolderForm::from(&self.holder);
        let form = PartyForm {
            id: self.id,
            holder,
            candidate,
            usual_hold_ms,
            lock_delay_ms,
            mode,
            permits,
            of,
            token: self.token.map(token),
            age_ms: self.age.map(millis),
            remaining_ms: self.remaining.map(millis),
        };
        form.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Party {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let form = PartyForm::deserialize(deserializer)?;
        let mode = match (form.mode, form.permits, form.of) {
            (ModeWord::Exclusive, ..) => Mode::Exclusive,
            (ModeWord::Read, ..) => Mode::Read,
            (ModeWord::Write, ..) => Mode::Write,
            (ModeWord::Permits, Some(take), Some(of)) => Mode::Permits { take, of },
            (ModeWord::Permits, None, _) => return Err(de::Error::missing_field("permits")),
            (ModeWord::Permits, Some(_), None) => return Err(de::Error::missing_field("of")),
        };
        let holder = Holder::from(HolderForm {
            text: form.holder,
            usual_hold_ms: form.usual_hold_ms,
            lock_delay_ms: form.lock_delay_ms,
            candidate: form.candidate,
            closed_at_ms: None,
        });
        Ok(Party::new(mode, "").with(|it| {
            it.id = form.id;
            it.holder = holder;
            it.token = form.token.map(FencingToken::grant_number);
            it.age = form.age_ms.map(Duration::from_millis);
            it.remaining = form.remaining_ms.map(Duration::from_millis);
        }))
    }
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Mutex,
    ReadWrite,
    Semaphore,
}

#[derive(Serialize, Deserialize)]
struct SnapshotForm {
    key: Key,
    /// For readers: whether there are holders.
    #[serde(default)]
    held: bool,
    kind: Option<Kind>,
    permits: Option<u32>,
    token: Option<FencingToken>,
    holders: Vec<Party>,
    waiters: Vec<Party>,
    linger_ms: Option<u64>,
    closed_by: Option<Holder>,
    #[serde(default)]
    notes: Vec<String>,
}

impl Serialize for Snapshot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (kind, permits) = match self.shape {
            None => (None, None),
            Some(Shape::Mutex) => (Some(Kind::Mutex), None),
            Some(Shape::ReadWrite) => (Some(Kind::ReadWrite), None),
            Some(Shape::Semaphore { of }) => (Some(Kind::Semaphore), Some(of)),
        };
        let form = SnapshotForm {
            key: self.key.clone(),
            held: !self.holders.is_empty(),
            kind,
            permits,
            token: (self.token != 0).then(|| token(self.token)),
            holders: self.holders.clone(),
            waiters: self.waiters.clone(),
            linger_ms: self.linger.map(millis),
            closed_by: self.closed_by.clone(),
            notes: self.notes.clone(),
        };
        form.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Snapshot {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let form = SnapshotForm::deserialize(deserializer)?;
        let shape = match (form.kind, form.permits) {
            (None, _) => None,
            (Some(Kind::Mutex), _) => Some(Shape::Mutex),
            (Some(Kind::ReadWrite), _) => Some(Shape::ReadWrite),
            (Some(Kind::Semaphore), Some(of)) => Some(Shape::Semaphore { of }),
            (Some(Kind::Semaphore), None) => return Err(de::Error::missing_field("permits")),
        };
        Ok(Snapshot::free(form.key).with(|it| {
            it.shape = shape;
            it.token = form.token.map_or(0, FencingToken::grant_number);
            it.holders = form.holders;
            it.waiters = form.waiters;
            it.linger = form.linger_ms.map(Duration::from_millis);
            it.closed_by = form.closed_by;
            it.notes = form.notes;
        }))
    }
}
