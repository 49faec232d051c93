//! What operators read, as it is written.

#![allow(clippy::disallowed_methods, reason = "a program of a user")]

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork::observers::{Metrics, Traces};
use latchwork::{Handover, LockManager, LostReason};
use metrics_exporter_prometheus::PrometheusBuilder;

/// Two locks, one contended and handed over, one lost to its longest hold.
async fn a_day(locks: &LockManager) {
    // However slowly a machine gets to the handover.
    let locks = &locks.clone().handover(Handover::new(Duration::from_secs(15), 1_000));
    let mutex = locks.mutex("stock/42");
    let held = mutex.acquire().await.unwrap();
    let (next, _) = tokio::join!(mutex.acquire(), held.release());
    next.unwrap().release().await.unwrap();
    assert!(mutex.acquire_within(Duration::ZERO).await.is_ok());
    let short = locks.mutex("mail/1").max_hold(Duration::from_millis(50)).acquire().await.unwrap();
    assert_eq!(short.lost().await.reason, LostReason::MaxHold);
    // The loss is told once the watchdog has seen it.
    for _ in 0..200 {
        if locks.mutex("mail/1").try_acquire().await.unwrap().is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    locks.close().await;
}

#[test]
fn metrics_are_prometheus_text() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let text = recorder.handle();
    metrics::set_global_recorder(recorder).unwrap();
    let by_kind = Metrics::labelled_by(|key| {
        let kind = key.as_str().split('/').next().unwrap_or_default();
        vec![metrics::Label::new("lock", kind.to_owned())]
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = latchwork::connect("mem:").await.unwrap().observer(Arc::new(by_kind));
        a_day(&locks).await;
    });
    let text = text.render();
    let number = |line: &str| {
        let found = text.lines().find_map(|l| l.strip_prefix(line));
        let number = found.unwrap_or_else(|| panic!("no {line} in\n{text}"));
        number.trim().parse::<f64>().unwrap()
    };
    assert_eq!(number("latchwork_acquired_total{lock=\"stock\",contended=\"false\"}"), 2.0);
    assert_eq!(number("latchwork_handovers_total{lock=\"stock\"}"), 1.0);
    assert_eq!(number("latchwork_wait_seconds_count{lock=\"stock\"}"), 3.0);
    assert_eq!(number("latchwork_hold_seconds_count{lock=\"stock\"}"), 3.0);
    assert_eq!(number("latchwork_lost_total{lock=\"mail\",reason=\"max_hold\"}"), 1.0);
    assert!(number("latchwork_hold_seconds_sum{lock=\"mail\"}") >= 0.05);
    assert!(number("latchwork_settled_total{lock=\"mail\"}") >= 1.0);
    assert!(text.contains("# HELP latchwork_wait_seconds how long an acquire"), "{text}");
}

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn traces_are_a_span_for_each_hold() {
    let written = Written::default();
    let writer = written.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_span_events(tracing_subscriber::fmt::format::FmtSpan::CLOSE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = latchwork::connect("mem:").await.unwrap().observer(Arc::new(Traces::new()));
        a_day(&locks).await;
    });
    let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
    let lines = |parts: &[&str]| {
        text.lines().filter(|line| parts.iter().all(|part| line.contains(part))).count()
    };
    assert_eq!(lines(&["hold{key=stock/42", "handed over"]), 1, "{text}");
    assert_eq!(lines(&["hold{key=stock/42", "released"]), 2, "{text}");
    assert_eq!(lines(&["hold{key=mail/1", "WARN", "lost", "max_hold"]), 1, "{text}");
    // Each span is closed.
    assert_eq!(lines(&["hold{key=stock/42", "close"]), 3, "{text}");
    assert_eq!(lines(&["waited_ms=", "hold{key=stock/42", "close"]), 3, "{text}");
}
