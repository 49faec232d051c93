//! What has happened to the locks of this process, as numbers for each store: those of the engine's own metrics.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use latchwork::Event;
use pyo3::prelude::*;

/// What is counted: its name, and its label.
const COUNTERS: [(&str, &str, &str); 18] = [
    ("latchwork_acquired", "contended", "false"),
    ("latchwork_acquired", "contended", "true"),
    ("latchwork_handovers", "", ""),
    ("latchwork_blocked_tries", "", ""),
    ("latchwork_abandoned_waits", "", ""),
    ("latchwork_renewals", "result", "ok"),
    ("latchwork_renewals", "result", "failed"),
    ("latchwork_lost", "reason", "expired"),
    ("latchwork_lost", "reason", "taken"),
    ("latchwork_lost", "reason", "session_ended"),
    ("latchwork_lost", "reason", "max_hold"),
    ("latchwork_lost", "reason", "other"),
    ("latchwork_suspect", "", ""),
    ("latchwork_clock_events", "kind", "stepped"),
    ("latchwork_clock_events", "kind", "unsteady"),
    ("latchwork_failed_tries", "", ""),
    ("latchwork_settled", "", ""),
    ("latchwork_release_failures", "", ""),
];

/// What is timed.
const TIMES: [&str; 3] =
    ["latchwork_wait_seconds", "latchwork_hold_seconds", "latchwork_renewal_seconds"];
const WAIT: usize = 0;
const HOLD: usize = 1;
const RENEWAL: usize = 2;

/// The bounds of the buckets, in milliseconds.
const BOUNDS: [u64; 16] =
    [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000];

/// The numbers of one store.
#[derive(Default)]
pub(crate) struct Counts {
    held: AtomicI64,
    waiting: AtomicI64,
    counters: [AtomicU64; COUNTERS.len()],
    times: [Times; TIMES.len()],
}

#[derive(Default)]
struct Times {
    /// Those up to each bound, and those beyond the last one.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    nanos: AtomicU64,
}

impl Times {
    fn add(&self, length: Duration) {
        let millis = length.as_nanos().div_ceil(1_000_000);
        let bucket = BOUNDS.iter().position(|bound| millis <= u128::from(*bound));
        self.buckets[bucket.unwrap_or(BOUNDS.len())].fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }
}

/// Of each store, by its name. It is locked with the GIL held alone, so no fork happens meanwhile.
fn stores() -> MutexGuard<'static, HashMap<String, Arc<Counts>>> {
    static STORES: OnceLock<Mutex<HashMap<String, Arc<Counts>>>> = OnceLock::new();
    STORES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// After a fork, in the child: what has happened in the parent is the parent's.
pub(crate) fn after_fork() {
    for counts in stores().values() {
        counts.reset();
    }
}

impl Counts {
    /// The numbers of this store.
    pub(crate) fn of(store: &str) -> Arc<Self> {
        stores().entry(store.to_owned()).or_default().clone()
    }

    fn reset(&self) {
        self.held.store(0, Ordering::Relaxed);
        self.waiting.store(0, Ordering::Relaxed);
        let counted = self.times.iter().flat_map(|it| it.buckets.iter().chain([&it.nanos]));
        for number in self.counters.iter().chain(counted) {
            number.store(0, Ordering::Relaxed);
        }
    }

    fn count(&self, name: &str, value: &str) {
        let found = COUNTERS.iter().position(|it| it.0 == name && it.2 == value);
        let other = || COUNTERS.iter().position(|it| it.0 == name && it.2 == "other");
        if let Some(counter) = found.or_else(other) {
            self.counters[counter].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A grant has ended.
    fn ended(&self, held: Duration) {
        self.held.fetch_sub(1, Ordering::Relaxed);
        self.times[HOLD].add(held);
    }

    pub(crate) fn event(&self, event: &Event<'_>) {
        match *event {
            Event::WaitBegan { .. } => {
                self.waiting.fetch_add(1, Ordering::Relaxed);
            }
            Event::WaitEnded { admitted, .. } => {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                if !admitted {
                    self.count("latchwork_abandoned_waits", "");
                }
            }
            Event::Waiting { .. } => self.count("latchwork_blocked_tries", ""),
            Event::TryFailed { .. } => self.count("latchwork_failed_tries", ""),
            Event::Acquired { waited, contended, .. } => {
                self.held.fetch_add(1, Ordering::Relaxed);
                self.times[WAIT].add(waited);
                self.count("latchwork_acquired", if contended { "true" } else { "false" });
            }
            Event::HandedOver { held, .. } => {
                self.times[HOLD].add(held);
                self.count("latchwork_handovers", "");
            }
            Event::Received { waited, .. } => self.times[WAIT].add(waited),
            Event::Renewed { took, .. } => {
                self.times[RENEWAL].add(took);
                self.count("latchwork_renewals", "ok");
            }
            Event::RenewFailed { .. } => self.count("latchwork_renewals", "failed"),
            Event::Suspect { .. } => self.count("latchwork_suspect", ""),
            Event::ClockStepped { .. } => self.count("latchwork_clock_events", "stepped"),
            Event::ClockUnsteady { .. } => self.count("latchwork_clock_events", "unsteady"),
            Event::Lost { lost, held, .. } => {
                self.ended(held);
                self.count("latchwork_lost", lost.reason.word());
            }
            Event::Released { held, .. } | Event::Detached { held, .. } => self.ended(held),
            Event::Adopted { .. } => {
                self.held.fetch_add(1, Ordering::Relaxed);
            }
            Event::Settled { .. } => self.count("latchwork_settled", ""),
            Event::ReleaseFailed { held, .. } => {
                if let Some((_, held)) = held {
                    self.ended(held);
                }
                self.count("latchwork_release_failures", "");
            }
            _ => {}
        }
    }
}

/// Store, name, name and value of its label, number.
type Counter = (String, &'static str, &'static str, &'static str, u64);
/// Store, name, upper bounds of the buckets with how many are below, sum, count.
type Histogram = (String, &'static str, Vec<(f64, u64)>, f64, u64);
/// Store, locks that are held, calls that wait.
type Gauges = (String, i64, i64);

/// The numbers of all stores, for the module `metrics`.
#[pyfunction]
pub(crate) fn counts(_py: Python<'_>) -> (Vec<Gauges>, Vec<Counter>, Vec<Histogram>) {
    let (mut gauges, mut counters, mut histograms) = (Vec::new(), Vec::new(), Vec::new());
    let mut stores: Vec<_> = stores().iter().map(|(name, it)| (name.clone(), it.clone())).collect();
    stores.sort_by(|a, b| a.0.cmp(&b.0));
    for (store, counts) in stores {
        let now = |gauge: &AtomicI64| gauge.load(Ordering::Relaxed).max(0);
        gauges.push((store.clone(), now(&counts.held), now(&counts.waiting)));
        counters.extend(COUNTERS.iter().zip(&counts.counters).map(|((name, label, value), it)| {
            (store.clone(), *name, *label, *value, it.load(Ordering::Relaxed))
        }));
        for (name, times) in TIMES.iter().zip(&counts.times) {
            let mut count = 0;
            let mut below = |bucket: &AtomicU64| {
                count += bucket.load(Ordering::Relaxed);
                count
            };
            let (last, buckets) = times.buckets.split_last().unwrap_or((&times.nanos, &[]));
            let bounds = BOUNDS.iter().map(|millis| *millis as f64 / 1e3);
            let buckets = bounds.zip(buckets.iter().map(&mut below)).collect();
            let all = below(last);
            let sum = times.nanos.load(Ordering::Relaxed) as f64 / 1e9;
            histograms.push((store.clone(), *name, buckets, sum, all));
        }
    }
    (gauges, counters, histograms)
}
