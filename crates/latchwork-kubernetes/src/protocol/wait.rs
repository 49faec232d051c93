//! Waiting: each change of the object that the watch brings is judged here, and only who would be admitted asks.

use std::sync::Arc;
use std::time::Duration;

use latchwork_store::{
    Attempt, BackendError, Blocked, Claim, Order, Verb, Wake, Watch, random_between,
};

use crate::lock;
use crate::protocol::attempt::{ALIVE, FULL};
use crate::protocol::known::{Entry, LastView};
use crate::protocol::names::object_of;
use crate::protocol::object::{is_foreign, times};
use crate::protocol::shared::Store;
use crate::protocol::watcher::Interest;

/// A waiter without a place retries within `SHORT`; one without a watch, or with a full object, within `LONG`.
const SHORT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(250));
const LONG: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(2));
/// Barging claims that wait for one key retry so much apart.
const SPREAD: Duration = Duration::from_millis(10);

impl Store {
    pub(crate) async fn wait(
        self: &Arc<Self>,
        claim: &Claim,
        blocked: &Blocked,
    ) -> Result<Wake, BackendError> {
        if !claim.waits {
            return std::future::pending().await; // only the engine's own timer can tell it to look
        }
        let entry = self.known.entry(&object_of(&claim.key));
        let _interest = self.watcher.interest();
        let gaps = self.watcher.gaps();
        let queues = claim.order == Order::Fifo;
        if blocked.resume.as_deref() == Some(FULL) {
            self.link.io.sleep(random_between(LONG.0, LONG.1)).await;
            return Ok(Wake::Look);
        }
        loop {
            let rung = entry.bell.notified();
            tokio::pin!(rung);
            // Enlist before looking, or a change in between would go unnoticed.
            rung.as_mut().enable();
            if self.watcher.gaps() != gaps {
                return Ok(Wake::Look);
            }
            match self.prospect(&entry, claim) {
                Prospect::Admitted => {
                    if !queues {
                        self.link.io.sleep(random_between(Duration::ZERO, SPREAD)).await;
                    }
                    return Ok(Wake::Look);
                }
                Prospect::NoPlace if queues && blocked.ahead.is_none() => {
                    self.link.io.sleep(random_between(SHORT.0, SHORT.1)).await;
                    return Ok(Wake::Look);
                }
                Prospect::NoPlace if queues => return Ok(Wake::Look),
                Prospect::NoPlace | Prospect::Blocked => {}
            }
            if self.watcher.is_refused() {
                self.link.io.sleep(random_between(LONG.0, LONG.1)).await;
                return Ok(Wake::Look);
            }
            rung.await;
        }
    }

    /// What a try would find, by what is known.
    fn prospect(&self, entry: &Entry, claim: &Claim) -> Prospect {
        let (seen, sight) = entry.seen();
        let object = match seen {
            LastView::Here(object) => object,
            LastView::Absent if entry.ousted(self.link.io.now()).is_some() => {
                return Prospect::Blocked;
            }
            LastView::Absent => return Prospect::Admitted,
            // The object cannot be read, or was dropped: the server has to be asked.
            LastView::Nothing => return Prospect::NoPlace,
        };
        let (now, wall) = (self.link.io.now(), self.link.io.clock().wall());
        if entry.ousted(now).is_some() {
            // The engine checks again when that is over.
            return Prospect::Blocked;
        }
        let mut record = object.record(&sight, now, wall, *lock(&self.link.time));
        let has_place = record.queue.iter().any(|waiter| waiter.id == claim.id);
        let answer = record.try_acquire(claim, 0, 0, times(now), ALIVE).0;
        match answer {
            Ok(Attempt::Blocked(_)) if has_place || is_foreign(&record) => Prospect::Blocked,
            Ok(Attempt::Blocked(_)) => Prospect::NoPlace,
            // An error is for the try to tell.
            Ok(Attempt::Granted(_)) | Err(_) => Prospect::Admitted,
        }
    }

    pub(crate) async fn watch(
        self: &Arc<Self>,
        name: String,
    ) -> Result<Box<dyn Watch>, BackendError> {
        let entry = self.known.entry(&name);
        // What was there before is no change.
        self.fetch(&entry).await?;
        let interest = self.watcher.interest();
        let seen = (entry.newest(), self.watcher.gaps());
        Ok(Box::new(Hints { store: self.clone(), entry, seen, _interest: interest }))
    }
}

enum Prospect {
    Admitted,
    Blocked,
    /// It has no place in the queue.
    NoPlace,
}

/// A subscription to one object.
struct Hints {
    store: Arc<Store>,
    entry: Arc<Entry>,
    /// The version and the gaps in the watch as last reported.
    seen: (u64, u64),
    _interest: Interest,
}

impl Watch for Hints {
    fn changed(&mut self) -> Verb<'_, Result<(), BackendError>> {
        Box::pin(async {
            loop {
                let rung = self.entry.bell.notified();
                tokio::pin!(rung);
                rung.as_mut().enable();
                let now = (self.entry.newest(), self.store.watcher.gaps());
                if now != self.seen {
                    self.seen = now;
                    return Ok(());
                }
                rung.await;
            }
        })
    }
}

impl std::fmt::Debug for Hints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hints").field("object", &self.entry.name).finish_non_exhaustive()
    }
}
