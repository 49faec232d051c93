//! The annotation that holds what the fields of a Lease cannot: all claims on a key.
//!
//! It has no time of any clock that another client would compare. A claim has its ttl and a beat, a number that each
//! of its requests changes: who reads the object counts the ttl from the moment when it first saw that beat.
//!
//! A place in the queue that was repeated once rests while the key is held: its waiter writes nothing until somebody
//! calls. A claim that comes behind it calls, and so does a key that opens. A waiter that does not answer a call loses
//! its place after its ttl.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::LeaseSpec;
use latchwork_store::{Claim, ClaimId, Mode, Order};
use serde::{Deserialize, Serialize};

/// The form of the annotation.
pub(crate) const FORM: u32 = 1;

/// The annotation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stored {
    pub(crate) form: u32,
    /// The fields of the Lease as they were written beside it. If they differ, another client has changed them.
    pub(crate) beside: Beside,
    /// The last token before those that are not known yet.
    pub(crate) token: u64,
    /// Counts the times at which the key opened for its queue.
    pub(crate) opened: u64,
    /// Counts the calls to places that rest.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) calls: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) held: Vec<Part>,
    #[serde(default, rename = "line", skip_serializing_if = "Vec::is_empty")]
    pub(crate) queue: Vec<Part>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) closed: Option<Closed>,
}

/// What tells our writing of the Lease's own fields from that of another client.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Beside {
    pub(crate) holder: String,
    pub(crate) renewed_us: i64,
    pub(crate) transitions: i32,
}

impl Beside {
    pub(crate) fn of(spec: &LeaseSpec) -> Self {
        Self {
            holder: spec.holder_identity.clone().unwrap_or_default(),
            renewed_us: spec.renew_time.as_ref().map_or(0, |time| time.0.as_microsecond()),
            transitions: spec.lease_transitions.unwrap_or_default(),
        }
    }
}

/// One claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    #[serde(with = "digits")]
    pub(crate) id: ClaimId,
    #[serde(with = "mode")]
    pub(crate) mode: Mode,
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) barges: bool,
    /// 0 for a waiter, and for a grant whose token is the version of the object: see `at_least`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) token: u64,
    /// The write that granted the claim could not know its own version. The token is that version, or this if it
    /// is larger.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) at_least: u64,
    pub(crate) ttl_ms: u64,
    pub(crate) beat: u64,
    /// The last call that a place had heard when it was repeated last; none of a place that never was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) heard: Option<u64>,
    /// When it was first asked for, by the wall clock of its process. For people.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) asked_ms: u64,
    /// The hold that a waiter is to replace.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "some_digits")]
    pub(crate) beside: Option<ClaimId>,
    pub(crate) holder: String,
}

/// A key that stays closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Closed {
    pub(crate) for_ms: u64,
    /// Until when, by the API server's clock, for those that have not seen it begin.
    pub(crate) until_ms: u64,
    /// Tells one closing from another.
    pub(crate) number: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) by: Option<String>,
}

impl Stored {
    pub(crate) fn empty() -> Self {
        Self {
            form: FORM,
            beside: Beside::default(),
            token: 0,
            opened: 0,
            calls: 0,
            held: Vec::new(),
            queue: Vec::new(),
            closed: None,
        }
    }

    /// Gives the grants of this version of the object their tokens.
    pub(crate) fn settle(&mut self, version: u64) {
        for part in self.held.iter_mut().filter(|part| part.token == 0) {
            part.token = version.max(part.at_least);
        }
        self.token = self.held.iter().map(|part| part.token).fold(self.token, u64::max);
    }
}

impl Part {
    /// A claim at its first request.
    pub(crate) fn of(claim: &Claim, asked: Duration) -> Self {
        Self {
            id: claim.id,
            mode: claim.mode,
            barges: claim.order == Order::Barging,
            token: 0,
            at_least: 0,
            ttl_ms: 0,
            beat: 0,
            heard: None,
            asked_ms: millis(asked),
            beside: None,
            holder: String::new(),
        }
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }

    /// Whether a place may rest: it was repeated, and nobody has called since.
    pub(crate) fn rests(&self, calls: u64) -> bool {
        self.heard == Some(calls)
    }

    /// Changes with each request of the claim, and with the first call that it has not answered.
    pub(crate) fn print(&self, calls: u64) -> u64 {
        self.beat << 1 | u64::from(self.heard.is_some() && !self.rests(calls))
    }
}

/// Whole milliseconds, and not less than the duration.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_false(value: &bool) -> bool {
    !value
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

mod digits {
    use latchwork_store::ClaimId;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(id: &ClaimId, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(id)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ClaimId, D::Error> {
        let text = String::deserialize(from)?;
        ClaimId::parse(&text).ok_or_else(|| D::Error::custom("an id is not 32 digits"))
    }
}

mod some_digits {
    use latchwork_store::ClaimId;
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(id: &Option<ClaimId>, to: S) -> Result<S::Ok, S::Error> {
        match id {
            Some(id) => super::digits::serialize(id, to),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<ClaimId>, D::Error> {
        super::digits::deserialize(from).map(Some)
    }
}

mod mode {
    use latchwork_store::Mode;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(mode: &Mode, to: S) -> Result<S::Ok, S::Error> {
        match mode {
            Mode::Permits { take, of } => to.collect_str(&format_args!("permits {take}/{of}")),
            mode => to.serialize_str(mode.word()),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Mode, D::Error> {
        let text = String::deserialize(from)?;
        let permits = || {
            let (take, of) = text.strip_prefix("permits ")?.split_once('/')?;
            Some(Mode::Permits { take: take.parse().ok()?, of: of.parse().ok()? })
        };
        match &*text {
            "exclusive" => Ok(Mode::Exclusive),
            "read" => Ok(Mode::Read),
            "write" => Ok(Mode::Write),
            _ => permits().ok_or_else(|| D::Error::custom("a mode is unknown")),
        }
    }
}
