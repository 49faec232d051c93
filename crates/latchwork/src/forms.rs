//! The forms in which tokens, states, snapshots and events are sent and logged, through `serde`.
//!
//! In JSON, with the feature `serde`; the rest is in [`store::forms`](latchwork_store::forms), with what
//! stays and what may come:
//!
//! | type | form |
//! | --- | --- |
//! | [`FencingToken`](crate::FencingToken) | `"7168"`: text, because tokens exceed 2^53. A number is read as well. 64 bits in binary formats |
//! | [`HoldState`](crate::HoldState) | `"held"`, `"suspect"`, `{"lost":{"reason":"expired","at_ns":"5000000000"}}` |
//! | [`Leader`](crate::Leader) | `{"candidate":"10.0.0.7:8080","term":"7168"}` |
//! | [`ForceReleased`](crate::ForceReleased) | `{"evicted":[..],"token":"8192"}` |
//! | [`Skipped`](crate::once::Skipped) | `{"done":{"closed_for_ms":60000,"by":"app@web-2","at_ms":1790000000123}}`, `{"running":{"holder":"app@web-2"}}`, `{"quarantine":{"left_ms":null}}` |
//! | [`Event`](crate::Event) | `{"event":"acquired","key":"stock/42","token":"7168","waited_us":310,"contended":false}`; not read |
//!
//! The field `event` of an [`Event`](crate::Event) is its variant's name (`acquired`,
//! `handed_over`, `renew_failed`), and its fields are those of the variant. Lengths of time are
//! whole microseconds there (`_us`), because most of what an event reports takes less than a
//! millisecond; `by_ns` is in nanoseconds. An error is its message. A later version may add names
//! and fields.
//!
//! An observer that logs each event as a line of JSON:
//!
//! ```
//! # #![allow(clippy::print_stderr)]
//! use latchwork::{Event, Observer};
//!
//! struct Log;
//!
//! impl Observer for Log {
//!     fn event(&self, event: &Event<'_>) {
//!         if let Ok(line) = serde_json::to_string(event) {
//!             eprintln!("{line}");
//!         }
//!     }
//! }
//! ```

mod event;
pub(crate) mod millis;
#[cfg(test)]
mod tests;
