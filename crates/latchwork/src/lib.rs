#![doc = include_str!("../README.md")]
//!
//! # Connect
//!
//! - [`connect`](fn@connect) opens a store by its address. It gives a [`LockManager`], which hands out locks and
//!   has the settings that they share. [`default_store`] is the address to use if there is none.
//! - [`connect_from`] opens one by a [`Source`], which is read again when a server refuses the login.
//! - [`block_on`] and [`BlockOn`] are for programs without async code.
//! - [`doctor`] reports whether a store is fit for locks, and [`init`] prepares a new one.
//! - [`Driver`] and [`store`] are for programs that build a store themselves.
#![cfg_attr(
    feature = "testing",
    doc = "- [`testing`] has a store for tests: they move its clock, take locks away, and let calls fail."
)]
//!
//! # Locks
//!
//! - [`Lock`] is a mutex. [`RwLock`] and [`Semaphore`] hand out locks that are shared. [`Resize`] says what another
//!   limit of a semaphore means, and [`Resized`] what a change of it has done.
//! - [`ReentrantMutex`] can be acquired again by its [`Owner`].
//! - [`MultiLock`] acquires several locks, all or none.
//! - [`Election`] makes one of many lead: [`Leadership`] is held by the winner, [`Leader`] is what
//!   others see.
//! - [`Once`] runs a task once in each [`Period`]; its outcomes are in the module [`once`](mod@once).
//!
//! # Holds
//!
//! - [`Guard`] is a lock that is held, and [`MultiGuard`] several. [`HoldState`] is the state that
//!   a guard returns.
//! - [`Exchange`] is the hold that replaces the one of a guard, at an upgrade or a downgrade.
//! - [`FencingToken`] grows with every holder. [`fence`] lets a resource refuse smaller ones.
//! - [`ForceReleased`] reports the holders that a forced release evicted.
//!
//! # Settings
//!
//! - [`AdaptiveTtl`] follows the [`HoldTimes`] of a key.
//! - [`Handover`] limits how long one process hands a lock over among its own waiters.
//!
//! # Errors and events
//!
//! - [`Error`] has an [`ErrorKind`] to match on.
//! - [`NotHeld`] and [`Lost`] report that a lock was lost, with a [`LostReason`].
//! - [`Observer`] receives each [`Event`].
#![cfg_attr(
    any(feature = "metrics", feature = "tracing"),
    doc = "- [`observers`] counts and traces events."
)]
#![cfg_attr(
    feature = "serde",
    doc = "",
    doc = "# Sending and logging",
    doc = "",
    doc = "- [`forms`] describes what is written and read through serde."
)]

mod address;
mod connect;
pub mod fence;
#[cfg(feature = "serde")]
pub mod forms;
mod hold;
mod locks;
#[cfg(any(feature = "metrics", feature = "tracing"))]
pub mod observers;
mod rules;
mod runtime;
#[cfg(feature = "testing")]
pub mod testing;
mod wait;

/// The boundary to a store: for who writes one, and the words in which locks are listed.
///
/// The crate [`latchwork_store`] has the whole contract, with its clock, its kits and its tests.
/// `latchwork-wire` has connections and other machinery.
pub mod store {
    pub use latchwork_store::doctor;
    pub use latchwork_store::{
        Attempt, Backend, BackendError, BackendErrorKind, Blocked, Capabilities, Cause, Claim,
        ClaimId, Effect, Fencing, Grant, Holder, Io, Key, Linger, MemoryBackend, Mode, Moment,
        Order, Party, Query, Released, Renewal, Shape, Snapshot, Verb, Wake, Watch,
    };
}

pub use connect::{connect, connect_from, default_store, doctor, init};
pub use hold::guard::Guard;
pub use hold::lease::HoldState;
pub use hold::owner::Owner;
#[doc(inline)]
pub use latchwork_store::{
    Error, ErrorKind, FencingToken, Lost, LostReason, NotHeld, Resize, Resized,
};
#[doc(inline)]
pub use latchwork_wire::Source;
pub use locks::election::{Election, Leader, Leadership};
pub use locks::lock::Lock;
pub use locks::manager::{ForceReleased, LockManager};
pub use locks::multi::{MultiGuard, MultiLock};
#[cfg(feature = "once")]
pub use locks::once::Once;
#[cfg(feature = "once")]
pub use locks::period::Period;
pub use locks::reentrant::ReentrantMutex;
pub use locks::rwlock::RwLock;
pub use locks::semaphore::Semaphore;
#[doc(hidden)]
pub use locks::unwatched::Unwatched;
pub use locks::upgrade::Exchange;
pub use rules::adaptive::{AdaptiveTtl, HoldTimes};
pub use rules::handover::Handover;
pub use rules::observe::{Event, Observer};
pub use runtime::block_on::{BlockOn, block_on};
pub use runtime::driver::Driver;

/// Results of [`Once`].
#[cfg(feature = "once")]
pub mod once {
    pub use crate::locks::once::{Begun, NotClosed, OnceOutcome, Reset, Run, Skipped};
}
