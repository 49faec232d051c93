//! Many holds, and what their observer was told.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::{self};
use latchwork::{Event, Guard, LockManager, Observer};

use crate::common::*;

/// Counts what went wrong with holds.
#[derive(Default)]
pub(crate) struct Troubles {
    pub(crate) failed: AtomicUsize,
    pub(crate) lost: AtomicUsize,
    pub(crate) renewed: AtomicUsize,
}

impl Observer for Troubles {
    fn event(&self, event: &Event<'_>) {
        let count = match event {
            Event::RenewFailed { .. } => &self.failed,
            Event::Lost { .. } => &self.lost,
            Event::Renewed { .. } => &self.renewed,
            _ => return,
        };
        count.fetch_add(1, Ordering::SeqCst);
    }
}

impl Troubles {
    /// How many renewals failed, and how many holds were lost.
    pub(crate) fn seen(&self) -> (usize, usize) {
        (self.failed.load(Ordering::SeqCst), self.lost.load(Ordering::SeqCst))
    }
}

/// A client whose troubles are counted.
pub(crate) async fn observed(url: &str) -> (LockManager, Arc<Troubles>) {
    let troubles = Arc::<Troubles>::default();
    (connect(url).await.unwrap().observer(troubles.clone()), troubles)
}

/// Takes so many locks, some at a time.
pub(crate) async fn hold_many(locks: &LockManager, count: usize) -> Vec<Guard> {
    let one = |n: usize| {
        let mutex = locks.mutex(format!("many/{n}"));
        async move { mutex.acquire_within(60 * SEC).await.unwrap() }
    };
    stream::iter(0..count).map(one).buffer_unordered(200).collect().await
}

/// Waits for so long, and says how many of the holds are left.
pub(crate) async fn left_after(guards: &[Guard], length: Duration) -> usize {
    let start = Instant::now();
    while start.elapsed() < length {
        tokio::time::sleep(SEC / 4).await;
    }
    guards.iter().filter(|guard| guard.ensure_held().is_ok()).count()
}
