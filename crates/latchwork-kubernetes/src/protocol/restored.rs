//! A server whose data were restored from a backup: it shows versions that are older than those it has shown.
//!
//! A read without a version and a write are answered by a quorum of etcd. So if one shows an older version than was
//! known when it was sent, it is not late: the data were set back, or the address leads to another cluster. What a
//! watch tells is never such a sign.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::Method;
use latchwork_store::{BackendError, BackendErrorKind, Effect, random_between};

use crate::protocol::known::{Before, Entry};
use crate::protocol::shared::Store;
use crate::protocol::watcher::version_of;

/// A server that does not answer is asked again within these.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(2));

impl Store {
    /// Starts over with what is known, and with the watch. False if that was done since then.
    pub(crate) fn start_over(&self, before: Before) -> bool {
        let is_first = self.known.start_over(before, self.link.io.now());
        if is_first {
            self.watcher.start_over();
        }
        is_first
    }

    /// Checks whether the server's data are as new as they were, once it answers: a watch that goes on after a version
    /// of the future gets no answer.
    pub(crate) async fn look_back(self: Arc<Self>) {
        if self.watcher.looks_back.swap(true, Ordering::SeqCst) {
            return;
        }
        let mut shut = self.link.is_shut();
        while !*shut.borrow() && self.watcher.is_needed(self.link.io.now()) {
            let compared = match self.compare().await {
                // Without the right to list, one object has to do.
                Ok(false) => match self.known.last_changed() {
                    Some(entry) => self.fetch(&entry).await,
                    None => Ok(()),
                },
                compared => compared.map(drop),
            };
            if compared.is_ok() {
                break;
            }
            tokio::select! {
                () = self.link.io.sleep(random_between(AGAIN.0, AGAIN.1)) => {}
                _ = shut.wait_for(|is_shut| *is_shut) => {}
            }
        }
        self.watcher.looks_back.store(false, Ordering::SeqCst);
    }

    /// Compares the newest version of the server with the newest one that is known; false without the right to list.
    pub(crate) async fn compare(&self) -> Result<bool, BackendError> {
        let before = self.known.before(None);
        let path = format!("{}?limit=1", self.link.leases());
        let answer = self.link.ask(Method::GET, &path, None).await?;
        match answer.status {
            200 => {
                let version = version_of(&answer);
                if version.is_some_and(|version| before.is_after(version)) {
                    self.start_over(before);
                }
                Ok(true)
            }
            403 => Ok(false),
            _ => Err(self.refused(&answer, "list leases", false)),
        }
    }

    /// Refuses to send anything about an object while the server contradicts itself.
    pub(crate) fn check_pauses(&self, entry: &Entry) -> Result<(), BackendError> {
        let Some(left) = entry.pauses.left(self.link.io.now()) else { return Ok(()) };
        let (namespace, name) = (&self.namespace, &entry.name);
        let message = format!(
            "the API server contradicts itself about the Lease {namespace}/{name}: it refuses writes as outdated and \
             shows no newer version, or shows older data than before; asked again in {left:.0?}"
        );
        Err(BackendError::new(BackendErrorKind::Unreachable, Effect::NotApplied, message).with_next_step(
            "check that all API servers behind this address share one etcd, and whether it is being restored",
        ))
    }
}
