//! A deterministic simulation of locks: machines, a network and stores on one paused clock.
//!
//! A seed draws a [`Plan`]: a store, machines with clocks of their own, what their tasks do with
//! locks, and what fails when. [`run`] carries it out with the real engine, the real quorum and the
//! real record, in virtual time, and a judge watches the rules ([`Rule`]). The same plan takes the
//! same course each time.
//!
//! [`fleet()`] has no faults: it tells what a fleet of clients asks of a store that takes its time.
//!
//! [`shrink`] makes a plan that breaks a rule small, and [`story()`] tells its run. [`Planted`] are
//! bugs that the simulation has to find, so that it is known to look.

#![allow(clippy::disallowed_methods, reason = "wraps the paused time of tokio")]

mod fleet;
mod judge;
mod level;
mod machine;
mod network;
mod plan;
mod planted;
mod search;
mod server;
mod story;
mod work;
mod world;

pub use fleet::{Fleet, Load, fleet};
pub use judge::{Rule, Violation};
pub use plan::{Fault, FaultKind, Lock, Op, Plan, Start, Stop, StoreKind};
pub use planted::Planted;
pub use search::{Found, search, shrink};
pub use story::story;
pub use world::{Outcome, run};
