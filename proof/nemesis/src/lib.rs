//! Breaks things while worker processes lock, and judges what they were told.
//!
//! Use it to see whether a store keeps Latchwork's promises with real processes, real signals and a
//! real clock. It asks nothing of a store but an address that [`latchwork::connect`] takes. The
//! contract of a store's verbs, one rule at a time, is the conformance suite's job.
//!
//! ```text
//! cargo run -p latchwork-nemesis --release -- run --store file:///tmp/locks --for 60s --faults kill,stop
//! ```
//!
//! # Who takes part
//!
//! - The **workers** ([`worker`]) are processes of several tasks each. A task tries, waits, holds,
//!   asks `ensure_held`, writes to the resource, and releases, drops or loses its guard. Some
//!   tries are single ones, some are cancelled in the middle. Of every twelve tasks three take hot keys
//!   (holds of a few milliseconds: handover), two take long holds (up to two ttls, some with a
//!   `max_hold` that they exceed), and one each is fair, reads or writes (and upgrades
//!   and downgrades its hold), takes permits of limits that change, takes two keys at once, enters
//!   its key twice, leads for a term, and runs once in a period.
//! - The **resource** ([`resource`]) is the outside judge: it keeps a fence for each key and its
//!   own order, and knows nothing of Latchwork.
//! - The **run** ([`run`]) starts the workers, plays the faults by a [`schedule`], sends everybody
//!   home, and looks for what is left in the store. Meanwhile a thread of it asks the store for how
//!   long it keeps what is held.
//! - The **judge** ([`eye`]) reads the merged history afterwards. It sees what the workers were
//!   told; of the store's own state only how long it keeps a claim, and what is left at the end.
//!
//! # The history
//!
//! Each process appends to its own `*.log`, one line for an event, one `write` for a line: a
//! SIGKILL leaves whole lines and at most one torn one at the end, which is left out. A line is
//!
//! ```text
//! nanoseconds process task event name=value ...
//! ```
//!
//! with nanoseconds of `CLOCK_BOOTTIME`, which all processes of a machine share, so that
//! `sort -n *.log` is the whole story. `task` is `-` for what belongs to no task. `%XX` stands for
//! bytes that a word cannot hold. [`event::What`] lists the events.
//!
//! Stamps are taken on the side that makes a check strict without making it wrong: a grant is
//! stamped after the acquire returned, `ensure_held` before it was asked, the end of a hold before
//! anything is sent, a kill before the signal, the end of a stop after it.
//!
//! # What a backend brings
//!
//! An address, and the [`bounds::Bounds`] of the store where they differ from the usual. For
//! faults of servers and networks: a [`faults::Nemesis`] for each (`strike`, `heal`, and a name).
//! For what `inspect` cannot see: a [`faults::Lister`]. For what a store cannot promise under some
//! fault: [`bounds::Allowed`] exceptions, which are counted in the report. A [`stores::Store`] is all
//! of that for one kind of servers. Several faults of a store can happen in one window, drawn by the
//! seed. A client of another kind ([`foreign`]) may take part.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use latchwork_nemesis::bounds::Allowed;
//! use latchwork_nemesis::faults::Nemesis;
//! use latchwork_nemesis::luck::Luck;
//! use latchwork_nemesis::run::Plan;
//!
//! struct Failover;
//!
//! impl Nemesis for Failover {
//!     fn name(&self) -> &str {
//!         "failover"
//!     }
//!     fn strike(&mut self, _: &mut Luck) -> std::io::Result<()> {
//!         Ok(()) // kill the master
//!     }
//!     fn heal(&mut self) -> std::io::Result<()> {
//!         Ok(()) // wait until there is a new one
//!     }
//! }
//!
//! let program = "target/debug/latchwork-nemesis".into();
//! let mut plan = Plan::new("redis://127.0.0.1:6379", program, "/tmp/logs".into());
//! plan = plan.ttl(Duration::from_secs(2));
//! plan.nemeses.push(Box::new(Failover));
//! plan.bounds.allowed.push(Allowed {
//!     rule: "exclusion",
//!     fault: "failover".into(),
//!     after: Duration::from_secs(2),
//! });
//! let outcome = plan.run(&mut |what| eprintln!("{what}")).unwrap();
//! assert!(outcome.passed(), "{outcome}");
//! ```
//!
//! # Clients of the service
//!
//! With `--service`, the workers do not use the library: they speak HTTP to a `latchwork serve`
//! between them and the store ([`service`]), which is killed, stopped and restarted, and whose
//! connections are cut. What is judged then is what its clients may rely on. Most evictions go through
//! the service, and where nothing else is broken, each loss must have its cause (`loss-reason`). With `--instances 2`,
//! their clients take turns between two instances with one seal key.
//!
//! # Limits
//!
//! One machine: stamps of two machines cannot be compared. A seed repeats the choices of a run and
//! not its timing.

#![cfg(target_os = "linux")]

pub mod bounds;
mod crew;
pub mod event;
mod evict;
pub mod eye;
pub mod faults;
mod fields;
pub mod flags;
pub mod foreign;
pub mod history;
pub mod lies;
mod log;
pub mod luck;
pub mod offers;
mod pause;
pub mod redis;
mod repeated;
pub mod resource;
pub mod run;
pub mod schedule;
pub mod service;
pub mod slow;
pub mod stores;
mod survey;
mod sweep;
mod witness;
pub mod worker;

pub use log::Log;
