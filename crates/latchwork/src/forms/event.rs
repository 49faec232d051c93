//! An event as an object: its word, its key, and what else it has.

use std::time::Duration;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::rules::observe::Event;

fn micros(length: Duration) -> u64 {
    u64::try_from(length.as_micros()).unwrap_or(u64::MAX)
}

/// Writes an object: the event's word, then these fields.
macro_rules! object {
    ($serializer:ident, $word:literal, { $($field:literal: $value:expr),* $(,)? }) => {{
        let mut form = $serializer.serialize_map(None)?;
        form.serialize_entry("event", $word)?;
        $(form.serialize_entry($field, &$value)?;)*
        form.end()
    }};
}

impl Serialize for Event<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Event::WaitBegan { key } => object!(serializer, "wait_began", { "key": key }),
            Event::WaitEnded { key, waited, admitted } => object!(serializer, "wait_ended", {
                "key": key,
                "waited_us": micros(waited),
                "admitted": admitted,
            }),
            Event::Waiting { key, blocked } => object!(serializer, "waiting", {
                "key": key,
                "cause": blocked.cause,
                "holder": blocked.holder.as_ref().map(|holder| holder.shown()),
                "ahead": blocked.ahead,
                "retry_after_us": blocked.retry_after.map(micros),
            }),
            Event::TryFailed { key, error } => object!(serializer, "try_failed", {
                "key": key,
                "error": error.message,
            }),
            Event::Acquired { key, token, waited, contended } => object!(serializer, "acquired", {
                "key": key,
                "token": token,
                "waited_us": micros(waited),
                "contended": contended,
            }),
            Event::HandedOver { key, from, token, held } => object!(serializer, "handed_over", {
                "key": key,
                "from": from,
                "token": token,
                "held_us": micros(held),
            }),
            Event::Received { key, token, waited } => object!(serializer, "received", {
                "key": key,
                "token": token,
                "waited_us": micros(waited),
            }),
            Event::Renewed { key, token, took, late, remaining } => {
                object!(serializer, "renewed", {
                    "key": key,
                    "token": token,
                    "took_us": micros(took),
                    "late_us": micros(late),
                    "remaining_us": micros(remaining),
                })
            }
            Event::RenewFailed { key, token, error, remaining } => {
                object!(serializer, "renew_failed", {
                    "key": key,
                    "token": token,
                    "error": error.message,
                    "remaining_us": micros(remaining),
                })
            }
            Event::Suspect { key, token } => object!(serializer, "suspect", {
                "key": key,
                "token": token,
            }),
            Event::ClockStepped { key, by } => object!(serializer, "clock_stepped", {
                "key": key,
                "by_ns": by,
            }),
            Event::ClockUnsteady { key, ratio } => object!(serializer, "clock_unsteady", {
                "key": key,
                "ratio": ratio,
            }),
            Event::Lost { key, token, lost, held } => object!(serializer, "lost", {
                "key": key,
                "token": token,
                "reason": lost.reason,
                "at_ns": lost.at,
                "held_us": micros(held),
            }),
            Event::Released { key, token, held } => object!(serializer, "released", {
                "key": key,
                "token": token,
                "held_us": micros(held),
            }),
            Event::Detached { key, token, held } => object!(serializer, "detached", {
                "key": key,
                "token": token,
                "held_us": micros(held),
            }),
            Event::Adopted { key, token } => object!(serializer, "adopted", {
                "key": key,
                "token": token,
            }),
            Event::Settled { key } => object!(serializer, "settled", { "key": key }),
            Event::ReleaseFailed { key, held, error } => object!(serializer, "release_failed", {
                "key": key,
                "token": held.map(|(token, _)| token),
                "held_us": held.map(|(_, held)| micros(held)),
                "error": error.message,
            }),
        }
    }
}
