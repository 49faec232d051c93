#![doc = include_str!("../README.md")]

mod address;
mod connect;
pub mod fence;
mod hold;
mod locks;
#[cfg(any(feature = "metrics", feature = "tracing"))]
pub mod observers;
mod rules;
mod runtime;
mod wait;

pub use connect::{connect, default_store, doctor, init};
pub use hold::guard::Guard;
pub use hold::lease::HoldState;
pub use hold::owner::Owner;
pub use latchwork_store as store;
#[doc(inline)]
pub use latchwork_store::{Error, ErrorKind, FencingToken, Lost, LostReason, NotHeld};
pub use locks::election::{Election, Leader, Leadership};
pub use locks::lock::Lock;
pub use locks::manager::{ForceReleased, LockManager};
pub use locks::multi::{MultiGuard, MultiLock};
pub use locks::once::Once;
pub use locks::period::Period;
pub use locks::reentrant::ReentrantMutex;
pub use locks::rwlock::RwLock;
pub use locks::semaphore::Semaphore;
pub use rules::adaptive::{AdaptiveTtl, HoldTimes};
pub use rules::handover::Handover;
pub use rules::observe::{Event, Observer};
pub use runtime::block_on::{BlockOn, block_on};
pub use runtime::driver::Driver;

/// What came of a task that is to run once: the words of [`Once`].
pub mod once {
    pub use crate::locks::once::{Begun, NotClosed, OnceOutcome, Reset, Run, Skipped};
}
