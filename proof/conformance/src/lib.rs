//! The rules of Latchwork's backend contract (B1 to B16) as named trials.
//!
//! Use it when you write a [`Backend`](latchwork_store::Backend): each rule of
//! [`latchwork_store::backend`] is one file in `rules/`, each check of it one trial with a name, so
//! a failure says which promise is broken. The trials use the five verbs only.
//!
//! A backend enrols with a [`Harness`]; then `tests/contract.rs` (with `harness = false` in
//! `Cargo.toml`) is this, and `cargo test --test contract -- b07` runs the wake-up rules alone:
//!
//! ```
//! use latchwork_conformance::{Client, Expected, Harness, Store, Time};
//! use latchwork_store::{Fencing, MemoryBackend, Verb};
//!
//! struct Mine;
//! impl Harness for Mine {
//!     fn expected(&self) -> Expected {
//!         Expected { fencing: Fencing::WhileDataSurvives, ..Expected::EVERYTHING }
//!     }
//!     fn time(&self) -> Time { Time::Paused }
//!     fn fresh<'a>(&'a self, io: &'a latchwork_store::Io) -> Verb<'a, Store> {
//!         let store = MemoryBackend::new(io.clone());
//!         Box::pin(async move { Store::new(move |_io| std::future::ready(Client::new(store.beside()))) })
//!     }
//! }
//! fn main() {
//!     # if false {
//!     latchwork_conformance::main("mine", Mine);
//!     # }
//! }
//! ```
//!
//! # What a backend cannot do
//!
//! [`Expected`] says what the backend can do. It must say the same of itself, and behave so. For
//! what it cannot do, the trials are replaced by one that expects a clear refusal: nothing is
//! skipped in silence.
//!
//! # Proof
//!
//! `mutations/backends.txt` at the root of the repository lists deliberate faults for every rule,
//! each with the trial that must catch it.
//!
//! # Time
//!
//! A store that takes all its time from [`Io`](latchwork_store::Io) is tried under
//! [`Time::Paused`]: hours pass in milliseconds, exactly. Other stores are tried under
//! [`Time::Real`] with short ttls. There, lower bounds are strict (an answer that came before its
//! time cannot be explained by a slow machine), and upper bounds are widened by the stall that a
//! witness thread measured in the same process. After a stall of more than a second the trial is
//! done once more, and says so.

mod case;
pub mod differential;
pub mod enrolment;
mod harness;
pub mod line_store;
pub mod namespaced;
mod primitives;
mod random;
mod rules;
mod stage;

use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};

pub use harness::{Client, Expected, Fault, Harness, Store, Time};

/// How many trials run side by side, unless the command line says otherwise: under real time they
/// sleep more than they work.
const THREADS: usize = 16;

/// All trials for a backend, named `name::rule::check`.
pub fn trials(name: &str, harness: impl Harness) -> Vec<Trial> {
    let harness: Arc<dyn Harness> = Arc::new(harness);
    let expected = harness.expected();
    rules::all()
        .into_iter()
        .chain(primitives::all())
        .flat_map(|rule| rule.cases)
        .filter(|case| (case.fits)(&expected))
        .map(|case| case.trial(name, harness.clone()))
        .collect()
}

/// Runs those of the trials that the command line asks for, and exits with the result. What the
/// harnesses own has ended by then.
pub fn run(trials: Vec<Trial>) -> ! {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS);
    libtest_mimic::run(&arguments, trials).exit()
}

/// The `main` of a test without harness: all trials of one backend.
pub fn main(name: &str, harness: impl Harness) -> ! {
    run(trials(name, harness))
}
