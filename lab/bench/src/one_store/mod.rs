//! `latchwork-bench store`: a store measured from where its locks are used.
//!
//! | file | job |
//! | --- | --- |
//! | `command.rs`, `table.rs` | what the command line may say; what is printed |
//! | `free.rs` | locks that nobody else wants, by tasks of this process |
//! | `crowd.rs` `worker.rs` | one lock that several processes want |
//! | `section.rs` | what was measured of each hold, and what follows from all of them |
//! | `plot.rs` | the picture |

mod command;
mod crowd;
mod free;
mod plot;
#[path = "../../../../proof/demo/src/say.rs"]
mod say;
mod section;
mod table;
pub(crate) mod worker;

use std::time::Duration;

use latchwork::{Error, LockManager};

pub(crate) use self::command::main;
use self::section::Measured;

/// What to measure.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) store: String,
    pub(crate) namespace: String,
    pub(crate) length: Duration,
    pub(crate) processes: u32,
}

/// A kind of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Workload {
    /// One task, a key that nobody else wants.
    Free,
    /// 64 tasks, each with such a key.
    Free64,
    /// Processes that want one key all the time.
    Contended,
    /// Processes that want one key, and each holds it for a while.
    HandOff,
}

impl Workload {
    pub(crate) const ALL: [Self; 4] = [Self::Free, Self::Free64, Self::Contended, Self::HandOff];

    /// Its name, for tables and programs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Free64 => "free, 64 tasks",
            Self::Contended => "contended",
            Self::HandOff => "hand-off",
        }
    }

    /// What its times are the times of.
    pub(crate) fn times(self) -> &'static str {
        match self {
            Self::Free | Self::Free64 => "acquire and release",
            Self::Contended | Self::HandOff => "from a release to the next hold",
        }
    }

    /// How long a hold lasts, from and to, in microseconds. Not one length: it could beat with the
    /// pauses of whoever polls.
    fn holds(self) -> (u64, u64) {
        match self {
            Self::HandOff => (43_000, 61_000),
            _ => (0, 0),
        }
    }
}

/// Measures one kind of use.
pub(crate) async fn measure(
    plan: &Plan,
    locks: &LockManager,
    workload: Workload,
) -> Result<Measured, Error> {
    match workload {
        Workload::Free => free::measure(plan, locks, 1).await,
        Workload::Free64 => free::measure(plan, locks, 64).await,
        Workload::Contended | Workload::HandOff => {
            crowd::measure(plan, workload.name(), workload.holds())
        }
    }
}
