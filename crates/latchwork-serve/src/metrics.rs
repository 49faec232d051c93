//! The metrics of the service, beside those of the library.

use std::sync::OnceLock;
use std::time::Duration;

use latchwork::observers::Metrics;
use latchwork::{Error, ErrorKind};
use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::time::pause;

/// The recorder of this process; there can be only one.
static EXPORTER: OnceLock<Result<PrometheusHandle, String>> = OnceLock::new();

/// Installs the recorder of this process, before the first lock.
///
/// # Errors
///
/// `Unsupported` if the program has a recorder of its own.
pub(crate) fn install() -> Result<(), Error> {
    let installed = EXPORTER.get_or_init(|| {
        let ours = Matcher::Prefix("latchwork_".to_owned());
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(ours, Metrics::BUCKETS)
            .map_err(|error| error.to_string())?;
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        metrics::set_global_recorder(recorder).map_err(|error| error.to_string())?;
        describe();
        Ok(handle)
    });
    installed.as_ref().map(drop).map_err(|why| {
        Error::new(ErrorKind::Unsupported, format!("metrics: {why}"))
            .with_next_step("run the service in a process of its own")
    })
}

fn describe() {
    describe_counter!("latchwork_http_requests_total", "Requests by route, method and status");
    describe_histogram!(
        "latchwork_http_request_seconds",
        Unit::Seconds,
        "From the arrival of a request to its answer, waiting included"
    );
    describe_counter!(
        "latchwork_not_renewed_total",
        "Holds that were released because their clients did not renew them"
    );
    describe_counter!(
        "latchwork_webhook_total",
        "Losses for the webhook: sent, failed after all tries, dropped because too many waited"
    );
    describe_gauge!("latchwork_client_holds", "Holds that clients have");
    describe_gauge!("latchwork_connections", "Connections of clients");
    describe_gauge!("latchwork_event_streams", "Streams of events of clients");
}

/// How often the samples of the histograms are brought together.
const UPKEEP: Duration = Duration::from_secs(5);

/// Brings the samples of the histograms together at intervals. The recorder keeps each sample until the metrics are
/// read or this is done, so a service whose metrics are never read would keep all of them.
pub(crate) async fn keep_up() {
    loop {
        upkeep();
        pause(UPKEEP).await;
    }
}

fn upkeep() {
    if let Some(Ok(handle)) = EXPORTER.get() {
        handle.run_upkeep();
    }
}

/// Counts one request.
pub(crate) fn request(method: &str, route: &str, status: u16, took: Duration) {
    // A method that HTTP does not know must not become a label.
    let method = match method {
        known @ ("GET" | "POST" | "DELETE" | "PUT" | "PATCH" | "HEAD" | "OPTIONS") => known,
        _ => "other",
    };
    let labels = [
        ("route", route.to_owned()),
        ("method", method.to_owned()),
        ("status", status.to_string()),
    ];
    counter!("latchwork_http_requests_total", &labels).increment(1);
    let route = route.to_owned();
    histogram!("latchwork_http_request_seconds", "route" => route).record(took.as_secs_f64());
}

/// Counts a hold whose client did not renew it.
pub(crate) fn not_renewed() {
    counter!("latchwork_not_renewed_total").increment(1);
}

/// Counts a loss for the webhook by its outcome.
pub(crate) fn webhook(outcome: &'static str) {
    counter!("latchwork_webhook_total", "outcome" => outcome).increment(1);
}

/// Counts a connection that was opened or closed.
pub(crate) fn connections(change: f64) {
    gauge!("latchwork_connections").increment(change);
}

/// All metrics, as Prometheus reads them, with the holds and streams of events of this moment.
pub(crate) fn text(holds: usize, streams: usize) -> String {
    gauge!("latchwork_client_holds").set(holds as f64);
    gauge!("latchwork_event_streams").set(streams as f64);
    match EXPORTER.get() {
        Some(Ok(handle)) => handle.render(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of this process that are in memory.
    fn resident() -> usize {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * rustix::param::page_size()
    }

    #[test]
    fn samples_that_nobody_reads_take_no_memory() {
        install().unwrap();
        let grows = || {
            let before = resident();
            for _ in 0..200 {
                (0..20_000).for_each(|_| histogram!("latchwork_sample_seconds").record(0.001));
                upkeep();
            }
            resident().saturating_sub(before)
        };
        // They are 32 MB each time. Now and then a test beside this one takes more.
        assert!((0..5).any(|_| grows() < 16 << 20), "more than 16 MiB each time");
    }
}
