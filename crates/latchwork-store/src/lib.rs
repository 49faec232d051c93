//! The boundary between [Latchwork](https://docs.rs/latchwork) and a store: the trait, its types,
//! and kits to write a store with.
//!
//! This crate is for authors of stores. Programs that take locks need only `latchwork`. Connections and
//! other machinery, which a store may use, are in `latchwork-wire`.
//!
//! - [`Backend`] is the boundary: five verbs, and [the contract](backend) that they keep.
//! - [`Io`] is what a backend is given to run on; [`clock`] is the time that it may read.
//! - [`kit`] has the pure parts that stores share: a record and a queue.
//! - [`MemoryBackend`] is a whole backend to learn from, and to test with.
//! - [`testing`] (feature `testing`) has a clock that a test sets.
#![cfg_attr(
    feature = "serde",
    doc = "- [`forms`] describes what is written and read through serde."
)]

mod answers;
pub mod backend;
mod backoff;
mod capabilities;
mod check_error;
mod claim;
pub mod clock;
pub mod doctor;
mod doorbell;
mod doubts;
mod error;
mod fork;
#[cfg(feature = "serde")]
pub mod forms;
mod held;
mod holder;
mod io;
mod key;
pub mod kit;
mod lifeline;
mod memory;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod token;
pub mod validity;
mod watch;
mod within;
mod words;

pub use answers::Answers;
pub use backend::{Backend, Verb};
pub use backoff::{Backoff, random_between, random_u128};
pub use capabilities::{Capabilities, Fencing};
pub use check_error::CheckError;
pub use claim::{Claim, ClaimId, Mode, Order, Resize, Shape, Stamp};
pub use clock::{Clock, Moment, Sleep};
#[cfg(target_os = "linux")]
pub use doorbell::Attending;
pub use doorbell::Doorbell;
pub use doubts::{DoubtSink, Doubts};
pub use error::{
    BackendError, BackendErrorKind, Effect, Error, ErrorKind, Lost, LostReason, NotHeld,
};
pub use fork::Origin;
pub use held::Held;
pub use holder::Holder;
pub use io::{Io, Task};
pub use key::Key;
pub use lifeline::Lifeline;
pub use memory::MemoryBackend;
pub use token::{Fenced, FencingToken};
pub use watch::Watch;
pub use words::{
    Attempt, Blocked, Cause, Grant, Linger, Party, Query, Released, Renewal, Resized, Snapshot,
    Wake,
};
