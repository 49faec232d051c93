//! What the observer hooks tell, for the history.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use latchwork::{Event, Observer};
use latchwork_store::Key;

use super::Orders;
use crate::event::What;
use crate::log::Log;

/// Notes down what Latchwork tells of a process's lines or of one fair task.
pub(crate) struct Watch {
    log: Arc<Log>,
    prefix: String,
    /// The task, and its attempt under way, where the observer is one task's own.
    own: Option<(u32, Arc<AtomicU64>)>,
    /// The attempt whose first block was noted.
    noted: AtomicU64,
}

/// Observes what the tasks of a process do together: they share places and hand over, which they
/// only do under one observer.
pub(crate) fn of_the_line(orders: &Orders, log: Arc<Log>) -> Arc<Watch> {
    Arc::new(Watch { log, prefix: prefix(orders), own: None, noted: AtomicU64::new(u64::MAX) })
}

/// Observes one task whose attempts are fair, each with a place of its own.
pub(crate) fn of_a_task(
    orders: &Orders,
    log: Arc<Log>,
    task: u32,
    attempt: Arc<AtomicU64>,
) -> Arc<Watch> {
    let own = Some((task, attempt));
    Arc::new(Watch { log, prefix: prefix(orders), own, noted: AtomicU64::new(u64::MAX) })
}

fn prefix(orders: &Orders) -> String {
    format!("{}:", orders.namespace)
}

impl Watch {
    fn blocked(&self, key: Arc<str>) {
        let Some((task, attempt)) = &self.own else {
            self.log.note(None, What::Waiting { key });
            return;
        };
        let attempt = attempt.load(Ordering::Relaxed);
        if self.noted.swap(attempt, Ordering::Relaxed) != attempt {
            self.log.note(Some(*task), What::Blocked { attempt });
        }
    }
}

impl Observer for Watch {
    fn event(&self, event: &Event<'_>) {
        let name =
            |key: &Key| key.as_str().strip_prefix(&self.prefix).unwrap_or(key.as_str()).into();
        let (key, kind) = match event {
            Event::Waiting { key, .. } => return self.blocked(name(key)),
            Event::TryFailed { key, .. } => (key, "try_failed"),
            Event::RenewFailed { key, .. } => (key, "renew_failed"),
            Event::Suspect { key, .. } => (key, "suspect"),
            Event::ReleaseFailed { key, .. } => (key, "release_failed"),
            Event::Lost { key, lost, .. } => (key, lost.reason.word()),
            _ => return,
        };
        self.log.note(None, What::Alarm { key: name(key), kind: kind.into() });
    }
}
