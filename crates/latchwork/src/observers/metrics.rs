//! Events of locks as metrics: counts and times.

use std::fmt;
use std::time::Duration;

use crate::rules::observe::{Event, Observer};
use latchwork_store::Key;
use metrics::{
    Label, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

type Labels = dyn Fn(&Key) -> Vec<Label> + Send + Sync;

/// An [`Observer`] that counts and times events through the `metrics` facade.
///
/// The program installs the recorder; `metrics-exporter-prometheus`, for example, exports
/// Prometheus text. All times are in seconds.
///
/// | metric | kind | what it counts |
/// | --- | --- | --- |
/// | `latchwork_held` | gauge | locks that this process holds now, including those whose release is not answered yet |
/// | `latchwork_waiting` | gauge | acquires that wait now |
/// | `latchwork_wait_seconds` | histogram | how long an acquire that succeeded took |
/// | `latchwork_hold_seconds` | histogram | how long a hold lasted, whatever ended it |
/// | `latchwork_acquired_total{contended}` | counter | grants of the store, and whether the acquire had to wait |
/// | `latchwork_handovers_total` | counter | holds that were handed over inside the process |
/// | `latchwork_blocked_tries_total` | counter | tries of waiters that were blocked |
/// | `latchwork_abandoned_waits_total` | counter | waits that ended without the lock: timed out, dropped, failed |
/// | `latchwork_renewals_total{result}` | counter | `ok` or `failed` |
/// | `latchwork_renewal_seconds` | histogram | how long a renewal took |
/// | `latchwork_renewal_late_seconds` | histogram | how much later than planned it was sent: a starved process |
/// | `latchwork_remaining_seconds` | histogram | the validity that remained after a renewal failed |
/// | `latchwork_lost_total{reason}` | counter | `expired`, `taken`, `session_ended`, `max_hold` |
/// | `latchwork_suspect_total` | counter | holds that came into doubt |
/// | `latchwork_clock_events_total{kind}` | counter | the store's clock was `stepped`, or is `unsteady` |
/// | `latchwork_failed_tries_total` | counter | tries that failed with an error |
/// | `latchwork_settled_total` | counter | abandoned claims that were released in the background |
/// | `latchwork_release_failures_total` | counter | releases that failed; the lock expires with its ttl |
///
/// Keys are not labels, because there may be many. [`labelled_by`](Metrics::labelled_by) adds
/// labels that you choose for a key, and [`with_label`](Metrics::with_label) one that is the same
/// for all keys: the store, for programs with several. One value may serve several managers.
///
/// A lock counts as held from the grant until the store has answered its release or freed it by its
/// ttl, or until it is lost; a handover inside the process changes nothing. Install the recorder
/// before you take the first lock; otherwise the gauges miss earlier locks.
///
/// ```
/// use std::sync::Arc;
/// use latchwork::observers::Metrics;
/// # async fn f() -> Result<(), latchwork::Error> {
/// let by_kind = Metrics::labelled_by(|key| {
///     let kind = key.as_str().split('/').next().unwrap_or_default();
///     vec![metrics::Label::new("lock", kind.to_owned())]
/// });
/// let locks = latchwork::connect("mem:").await?.observer(Arc::new(by_kind));
/// # let _ = locks; Ok(()) }
/// ```
pub struct Metrics {
    labels: Box<Labels>,
    constant: Vec<Label>,
}

impl Metrics {
    /// Creates metrics without labels for keys.
    pub fn new() -> Self {
        Self::labelled_by(|_| Vec::new())
    }

    /// Bounds of histogram buckets, in seconds, from 1 ms to 5 min. Pass them to the recorder,
    /// which may otherwise keep quantiles that cannot be added up over several processes.
    ///
    /// ```
    /// use latchwork::observers::Metrics;
    /// use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
    ///
    /// # fn main() -> Result<(), metrics_exporter_prometheus::BuildError> {
    /// let latchwork = Matcher::Prefix("latchwork_".to_owned());
    /// let exporter = PrometheusBuilder::new().set_buckets_for_metric(latchwork, Metrics::BUCKETS)?;
    /// # let _ = exporter; Ok(()) }
    /// ```
    pub const BUCKETS: &[f64] = &[
        0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0,
        300.0,
    ];

    /// Creates metrics with the labels that `labels` makes of a key. It must return the same labels
    /// for the same key each time. Keep them few, because recorders never drop a label.
    pub fn labelled_by(labels: impl Fn(&Key) -> Vec<Label> + Send + Sync + 'static) -> Self {
        describe();
        Self { labels: Box::new(labels), constant: Vec::new() }
    }

    /// Adds a label that is the same for all keys.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use latchwork::observers::Metrics;
    /// # async fn f() -> Result<(), latchwork::Error> {
    /// let locks = latchwork::connect("mem:").await?;
    /// let store = locks.capabilities().store.to_string();
    /// let locks = locks.observer(Arc::new(Metrics::new().with_label("store", store)));
    /// # let _ = locks; Ok(()) }
    /// ```
    #[must_use]
    pub fn with_label(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.constant.push(Label::new(name, value.into()));
        self
    }

    fn of(&self, key: &Key) -> Vec<Label> {
        let mut labels = (self.labels)(key);
        labels.extend_from_slice(&self.constant);
        labels
    }

    fn with(&self, key: &Key, name: &'static str, value: &'static str) -> Vec<Label> {
        let mut labels = self.of(key);
        labels.push(Label::from_static_parts(name, value));
        labels
    }

    fn count(&self, name: &'static str, key: &Key) {
        counter!(name, self.of(key)).increment(1);
    }

    fn time(&self, name: &'static str, key: &Key, length: Duration) {
        histogram!(name, self.of(key)).record(length);
    }

    /// One more, or one less.
    fn change(&self, name: &'static str, key: &Key, by: f64) {
        gauge!(name, self.of(key)).increment(by);
    }

    /// A grant has ended.
    fn ended(&self, key: &Key, held: Duration) {
        self.time("latchwork_hold_seconds", key, held);
        self.change("latchwork_held", key, -1.0);
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Observer for Metrics {
    fn event(&self, event: &Event<'_>) {
        match *event {
            Event::WaitBegan { key } => self.change("latchwork_waiting", key, 1.0),
            Event::WaitEnded { key, admitted, .. } => {
                self.change("latchwork_waiting", key, -1.0);
                if !admitted {
                    self.count("latchwork_abandoned_waits_total", key);
                }
            }
            Event::Waiting { key, .. } => self.count("latchwork_blocked_tries_total", key),
            Event::TryFailed { key, .. } => self.count("latchwork_failed_tries_total", key),
            Event::Acquired { key, waited, contended, .. } => {
                self.change("latchwork_held", key, 1.0);
                self.time("latchwork_wait_seconds", key, waited);
                let contended = if contended { "true" } else { "false" };
                let labels = self.with(key, "contended", contended);
                counter!("latchwork_acquired_total", labels).increment(1);
            }
            Event::HandedOver { key, held, .. } => {
                // The store's grant goes on, whether or not the waiter still takes it.
                self.time("latchwork_hold_seconds", key, held);
                self.count("latchwork_handovers_total", key);
            }
            Event::Received { key, waited, .. } => {
                self.time("latchwork_wait_seconds", key, waited);
            }
            Event::Renewed { key, took, late, .. } => {
                self.time("latchwork_renewal_seconds", key, took);
                self.time("latchwork_renewal_late_seconds", key, late);
                let labels = self.with(key, "result", "ok");
                counter!("latchwork_renewals_total", labels).increment(1);
            }
            Event::RenewFailed { key, remaining, .. } => {
                self.time("latchwork_remaining_seconds", key, remaining);
                let labels = self.with(key, "result", "failed");
                counter!("latchwork_renewals_total", labels).increment(1);
            }
            Event::Suspect { key, .. } => self.count("latchwork_suspect_total", key),
            Event::ClockStepped { key, .. } => {
                let labels = self.with(key, "kind", "stepped");
                counter!("latchwork_clock_events_total", labels).increment(1);
            }
            Event::ClockUnsteady { key, .. } => {
                let labels = self.with(key, "kind", "unsteady");
                counter!("latchwork_clock_events_total", labels).increment(1);
            }
            Event::Lost { key, lost, held, .. } => {
                self.ended(key, held);
                let labels = self.with(key, "reason", lost.reason.word());
                counter!("latchwork_lost_total", labels).increment(1);
            }
            Event::Released { key, held, .. } => self.ended(key, held),
            Event::Detached { key, held, .. } => self.ended(key, held),
            Event::Adopted { key, .. } => self.change("latchwork_held", key, 1.0),
            Event::Settled { key } => self.count("latchwork_settled_total", key),
            Event::ReleaseFailed { key, held, .. } => {
                if let Some((_, held)) = held {
                    self.ended(key, held);
                }
                self.count("latchwork_release_failures_total", key);
            }
        }
    }
}

/// Tells the recorder what the metrics are.
fn describe() {
    for (name, what) in [
        ("latchwork_wait_seconds", "how long an acquire that succeeded took"),
        ("latchwork_hold_seconds", "how long a hold lasted"),
        ("latchwork_renewal_seconds", "how long a renewal took"),
        ("latchwork_renewal_late_seconds", "how much later than planned a renewal was sent"),
        ("latchwork_remaining_seconds", "the validity that remained after a renewal failed"),
    ] {
        describe_histogram!(name, Unit::Seconds, what);
    }
    for (name, what) in [
        ("latchwork_held", "locks that are held now"),
        ("latchwork_waiting", "acquires that wait now"),
    ] {
        describe_gauge!(name, Unit::Count, what);
    }
    for (name, what) in [
        ("latchwork_acquired_total", "grants of the store"),
        ("latchwork_handovers_total", "holds that were handed over inside the process"),
        ("latchwork_blocked_tries_total", "tries of waiters that were blocked"),
        ("latchwork_abandoned_waits_total", "waits that ended without the lock"),
        ("latchwork_renewals_total", "renewals, by result"),
        ("latchwork_lost_total", "holds that ended without a release, by reason"),
        ("latchwork_suspect_total", "holds that came into doubt"),
        ("latchwork_clock_events_total", "steps and changes of rate of the store's clock"),
        ("latchwork_failed_tries_total", "tries that failed with an error"),
        ("latchwork_settled_total", "abandoned claims that were released in the background"),
        ("latchwork_release_failures_total", "releases that failed"),
    ] {
        describe_counter!(name, Unit::Count, what);
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}
