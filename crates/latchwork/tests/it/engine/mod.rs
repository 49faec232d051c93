//! The engine above the boundary, on the memory backend and one paused runtime.
//!
//! Tests that are named `hNN_...` provoke the hazard of that number in `docs/limits.md`.

#![allow(clippy::disallowed_methods, reason = "tests start threads and runtimes of their own")]

mod support;

mod adaptive;
mod answered;
mod cancel;
mod crowd;
mod drop_safety;
#[cfg(feature = "metrics")]
mod gauges;
mod handover;
mod holder;
mod lock_delay;
mod machine_pause;
mod many;
mod options;
mod primitives;
mod pushed;
mod store_clock;
mod unpolled;
mod unwatched;
mod upgrade;
mod waiting;
mod work;
