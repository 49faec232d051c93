//! The forms in which the types of this crate are sent and logged, through `serde`.
//!
//! In JSON, with the feature `serde`:
//!
//! | type | form |
//! | --- | --- |
//! | [`FencingToken`] | `"7168"`: text, because tokens exceed 2^53. A number is read as well. 64 bits in binary formats |
//! | [`Moment`](crate::Moment) | `"5000000000"`: nanoseconds, as text for the same reason. 64 bits in binary formats |
//! | [`Key`] | `"stock/42"` |
//! | [`ClaimId`] | `"0123456789abcdef0123456789abcdef"`; 128 bits in binary formats |
//! | [`Mode`] | `"exclusive"`, `"read"`, `"write"`, `{"permits":{"take":2,"of":5}}` |
//! | [`Shape`](crate::Shape) | `"mutex"`, `"read-write"`, `{"semaphore":{"of":5}}` |
//! | [`Cause`](crate::Cause) | `"held"`, `"queued"`, `"linger"`, `"quarantine"`, `"foreign"` |
//! | [`Holder`] | `{"text":"app@web-2","usual_hold_ms":null,"lock_delay_ms":null,"candidate":null,"closed_at_ms":null}` |
//! | [`Party`] | `{"id":null,"holder":"app@web-2","candidate":null,"usual_hold_ms":null,"lock_delay_ms":null,"mode":"permits","permits":2,"of":5,"token":"7168","age_ms":20,"remaining_ms":9000}` |
//! | [`Snapshot`](crate::Snapshot) | `{"key":"stock/42","held":true,"kind":"semaphore","permits":5,"token":"7168","holders":[..],"waiters":[..],"linger_ms":null,"closed_by":null,"notes":[]}`; `closed_by` is a [`Holder`] in its form |
//! | [`LostReason`](crate::LostReason) | `"expired"`, `"taken"`, `"session_ended"`, `"max_hold"`, `"forked"` |
//! | [`Lost`](crate::Lost) | `{"reason":"expired","at_ns":"5000000000"}` |
//! | [`NotHeld`](crate::NotHeld) | `"suspect"`, `{"lost":{"reason":"taken","at_ns":"5000000000"}}` |
//! | [`Fenced`](crate::Fenced) | `{"refused":"7168","newest":"8192"}` |
//! | [`ErrorKind`](crate::ErrorKind) | the variant's name: `"TimedOut"` |
//! | [`Error`] | `{"kind":"TimedOut","message":"..","key":"stock/42","store":"mem:","next_step":null,"lost":null,"may_have_applied":false}`; not read |
//! | [`Report`] | `{"store":"mem:","fit":true,"worst":"info","findings":[..]}`; not read |
//! | [`Finding`](crate::doctor::Finding) | an object with its fields; not read |
//! | [`Prepared`](crate::doctor::Prepared) | an object with its fields; not read |
//!
//! [`Snapshot`](crate::Snapshot) and [`Party`] have the form that `latchwork show --json` prints, so a program can
//! read what the command writes. Their tokens are [`FencingToken`]s: the numbers that a resource has
//! seen, not those of the store.
//!
//! # What stays and what may come
//!
//! Fields and words keep their names and meaning. A later version may add fields, and words for
//! types that are `#[non_exhaustive]`. A reader passes over fields that it does not know, and takes
//! an optional field that is absent for `null`. A word that it does not know is an error that names
//! it. All fields are always written, so formats without field names work too, between programs
//! with the same version of this crate.
//!
//! Lengths of time are whole milliseconds, rounded down. `closed_at_ms` is a point in time: milliseconds since
//! 1970, by the clock of the host that closed the key.

mod lock_views;
mod numbers;
mod reports;
#[cfg(test)]
mod tests;

#[cfg(doc)]
use crate::{ClaimId, Error, FencingToken, Holder, Key, Mode, Party, doctor::Report};
