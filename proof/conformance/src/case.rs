//! One named check of one rule, and the runner that turns it into a trial.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use latchwork_store::clock::boot_time;
use latchwork_store::testing::stalls;
use libtest_mimic::{Failed, Trial};

use crate::harness::{Expected, Harness};
use crate::stage::Stage;

/// Beyond this stall of the machine a result says little: the trial is done once more.
const TOO_STALLED: Duration = Duration::from_secs(1);

pub(crate) type CaseFuture = Pin<Box<dyn Future<Output = ()>>>;

/// A named check of a rule.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    /// Rule file and name: `b01_atomic::exclusive_claims_exclude`.
    pub(crate) name: &'static str,
    /// Whether the check fits a backend that can do this.
    pub(crate) fits: fn(&Expected) -> bool,
    /// The check itself; it panics when the rule is broken.
    pub(crate) run: fn(Stage) -> CaseFuture,
}

/// Names an async function of the rule's module as a case.
macro_rules! case {
    ($name:ident) => {
        $crate::case::case!($name, |_| true)
    };
    ($name:ident, $fits:expr) => {
        $crate::case::Case {
            name: $crate::case::short(concat!(module_path!(), "::", stringify!($name))),
            fits: $fits,
            run: |stage| Box::pin($name(stage)),
        }
    };
}
pub(crate) use case;

/// Cuts `latchwork_conformance::rules::` or `::primitives::` off.
pub(crate) fn short(path: &'static str) -> &'static str {
    ["rules::", "primitives::"]
        .into_iter()
        .find_map(|folder| path.rsplit_once(folder))
        .map_or(path, |(_, rest)| rest)
}

impl Case {
    /// The trial of this case against a backend.
    pub(crate) fn trial(self, backend: &str, harness: Arc<dyn Harness>) -> Trial {
        let name = format!("{backend}::{}", self.name);
        let told = name.clone();
        Trial::test(name, move || {
            stalls::start();
            let start = boot_time();
            let mut outcome = self.once(&harness);
            let stall = stalls::since(start).longest;
            if stall > TOO_STALLED {
                eprintln!("{told}: the machine stood still for {stall:?}, done once more");
                outcome = self.once(&harness);
            }
            outcome.map_err(Failed::from)
        })
    }

    fn once(self, harness: &Arc<dyn Harness>) -> Result<(), String> {
        let harness = harness.clone();
        catch_unwind(AssertUnwindSafe(|| Stage::play(harness, self.run))).map_err(words)
    }
}

/// The message of a panic.
fn words(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast_ref::<&str>().unwrap_or(&"it panicked").to_string(),
    }
}
