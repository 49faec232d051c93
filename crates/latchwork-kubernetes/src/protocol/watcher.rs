//! One watch for all claims of this process: of those that wait, and of those that hold.
//!
//! It begins when the store is opened, and ends when nobody has used the store for a while. It sees each claim begin, so
//! that a claim of a dead process ends a ttl after its last beat and not a ttl after the first look at it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::Method;
use http_body_util::BodyExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use latchwork_store::{BackendError, Backoff, Moment};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::Notify;

use crate::protocol::names::LABEL;
use crate::protocol::object::Object;
use crate::protocol::shared::Store;
use crate::server::link::{Answer, request};

/// A watch that nobody needs is kept for so long. A holder renews more often, with all but the longest ttls.
const IDLE: Duration = Duration::from_secs(30);
/// The interval between checks whether anybody needs the watch and whether it lives.
const TICK: Duration = Duration::from_secs(5);
/// The server sends a bookmark each minute: a watch that says nothing for longer is dead.
const SILENCE: Duration = Duration::from_secs(100);
/// The server ends a watch after so many seconds, and the next one may reach another server.
const SECONDS: u64 = 300;

/// The state of the one watch.
#[derive(Default)]
pub(crate) struct Watcher {
    /// How many wait.
    interested: Arc<AtomicUsize>,
    /// When a verb was last called, in nanoseconds of the boot clock.
    used: AtomicU64,
    runs: AtomicBool,
    live: AtomicBool,
    /// The server refuses to be watched.
    refused: AtomicBool,
    /// How often changes may have been missed.
    gaps: AtomicU64,
    /// The version after which the watch goes on.
    after: AtomicU64,
    /// The watch has to restart, whatever its server sends.
    restart: Notify,
    /// It is being checked whether the server's data were restored.
    pub(crate) looks_back: AtomicBool,
}

/// Keeps the watch going.
pub(crate) struct Interest(Arc<AtomicUsize>);

impl Drop for Interest {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Watcher {
    /// Keeps the watch going as long as the value lives.
    pub(crate) fn interest(&self) -> Interest {
        self.interested.fetch_add(1, Ordering::SeqCst);
        Interest(self.interested.clone())
    }

    pub(crate) fn is_needed(&self, now: Moment) -> bool {
        let used = Moment::from_nanos(self.used.load(Ordering::SeqCst));
        self.interested.load(Ordering::SeqCst) > 0 || now.since(used) < IDLE
    }

    /// Whether changes arrive, as far as is known.
    pub(crate) fn is_live(&self) -> bool {
        self.live.load(Ordering::SeqCst)
    }

    /// Whether the server refuses to be watched.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused.load(Ordering::SeqCst)
    }

    pub(crate) fn gaps(&self) -> u64 {
        self.gaps.load(Ordering::SeqCst)
    }

    /// Ends the watch: it goes on from what the server has now.
    pub(crate) fn start_over(&self) {
        self.after.store(0, Ordering::SeqCst);
        self.gaps.fetch_add(1, Ordering::SeqCst);
        self.restart.notify_one();
    }
}

/// A notification of the watch.
#[derive(Deserialize)]
struct Event<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// As much of an object as tells whether anybody here needs it, and of a failure.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    metadata: Meta,
    #[serde(default)]
    code: u16,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    #[serde(default)]
    name: String,
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    labels: HashMap<String, String>,
}

/// The version of a list.
pub(crate) fn version_of(list: &Answer) -> Option<u64> {
    let head = serde_json::from_slice::<Head>(&list.body).ok()?;
    head.metadata.resource_version.parse().ok()
}

/// Why a watch has ended.
#[derive(Clone, Copy)]
enum End {
    /// Nobody needs it, or the backend was dropped.
    Unneeded,
    /// It goes on after the last version.
    Broken,
    /// The server no longer has the changes after the last version.
    Gone,
}

/// Watches. What the server has may not be what it had when it reported the version, unless that was just now.
async fn run(store: Weak<Store>, mut is_sure: bool) {
    let mut pauses = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
    loop {
        let Some(held) = store.upgrade() else { return };
        if !is_sure {
            held.link.io.spawn(held.clone().look_back());
        }
        let (io, mut shut) = (held.link.io.clone(), held.link.is_shut());
        let start = io.now();
        let end = tokio::select! {
            end = held.follow() => end,
            () = held.watcher.restart.notified() => End::Gone,
            _ = shut.wait_for(|is_shut| *is_shut) => End::Unneeded,
        };
        held.watcher.live.store(false, Ordering::SeqCst);
        match end {
            End::Unneeded => {
                held.watcher.runs.store(false, Ordering::SeqCst);
                // Somebody may have come who saw it run.
                let wanted = held.watcher.is_needed(io.now());
                let closed = *shut.borrow();
                if closed || !wanted || held.watcher.runs.swap(true, Ordering::SeqCst) {
                    return;
                }
            }
            End::Gone => held.restart().await,
            End::Broken => {}
        }
        is_sure = matches!(end, End::Gone);
        if io.now().since(start) > TICK {
            pauses.reset();
        }
        drop(held);
        tokio::select! {
            () = io.sleep(pauses.pause()) => {}
            _ = shut.wait_for(|is_shut| *is_shut) => return,
        }
    }
}

impl Store {
    /// Asks for the version from which on all changes are seen, and begins to watch. Without the right to list, it only
    /// finds out whether the server answers.
    pub(crate) async fn begin(self: &Arc<Self>) -> Result<(), BackendError> {
        let path = format!("{}?limit=1", self.link.leases());
        let answer = self.link.ask(Method::GET, &path, None).await?;
        match answer.status {
            200 => self.watch_after(&answer),
            403 => self.fetch(&self.known.entry("latchwork")).await?,
            _ => return Err(self.refused(&answer, "list leases", false)),
        }
        self.watch_on(true);
        Ok(())
    }

    /// Notes that the store is in use.
    pub(crate) fn keep_watching(self: &Arc<Self>) {
        self.watch_on(false);
    }

    fn watch_on(self: &Arc<Self>, is_sure: bool) {
        self.watcher.used.store(self.link.io.now().as_nanos(), Ordering::SeqCst);
        if !self.watcher.runs.swap(true, Ordering::SeqCst) {
            self.link.io.spawn(run(Arc::downgrade(self), is_sure));
        }
    }

    fn watch_after(&self, list: &Answer) {
        if let Some(version) = version_of(list) {
            self.known.heard_of(version);
            self.watcher.after.store(version, Ordering::SeqCst);
        }
    }

    /// Goes on from now: each waiter has to check.
    async fn restart(self: &Arc<Self>) {
        let before = self.known.before(None);
        let path = format!("{}?limit=1", self.link.leases());
        let Ok(answer) = self.link.ask(Method::GET, &path, None).await else { return };
        match answer.status {
            200 => {
                let version = version_of(&answer);
                if version.is_some_and(|version| before.is_after(version)) {
                    self.known.start_over(before, answer.at);
                }
                self.watch_after(&answer);
            }
            // The waiters check on their own.
            403 => self.watcher.refused.store(true, Ordering::SeqCst),
            _ => {}
        }
        self.watcher.gaps.fetch_add(1, Ordering::SeqCst);
        self.known.ring_all();
    }

    /// One request that is answered by all changes.
    async fn follow(&self) -> End {
        let after = self.watcher.after.load(Ordering::SeqCst);
        if after == 0 {
            return End::Gone;
        }
        let path = format!(
            "{}?watch=1&allowWatchBookmarks=true&timeoutSeconds={SECONDS}&resourceVersion={after}",
            self.link.leases()
        );
        let io = &self.link.io;
        let Ok(request) = request(Method::GET, &path, None) else { return End::Broken };
        let Ok(client) = self.link.client() else { return End::Broken };
        let sent = io.within(TICK * 2, client.send(request)).await;
        let Some(Ok(response)) = sent else { return End::Broken };
        let status = response.status().as_u16();
        self.watcher.refused.store(status == 403, Ordering::SeqCst);
        match status {
            200 => {}
            410 => return End::Gone,
            403 => {
                // The waiters check on their own.
                self.known.ring_all();
                return End::Broken;
            }
            _ => return End::Broken,
        }
        self.watcher.live.store(true, Ordering::SeqCst);
        let mut body = response.into_body();
        let mut pending = Vec::new();
        let mut heard = io.now();
        loop {
            let frame = match io.within(TICK, body.frame()).await {
                Some(frame) => frame,
                None => {
                    let now = io.now();
                    if !self.watcher.is_needed(now) {
                        return End::Unneeded;
                    }
                    if now.since(heard) >= SILENCE {
                        return End::Broken;
                    }
                    continue;
                }
            };
            let Some(Ok(frame)) = frame else { return End::Broken };
            let Ok(data) = frame.into_data() else { continue };
            heard = io.now();
            if !self.watcher.is_needed(heard) {
                return End::Unneeded;
            }
            pending.extend_from_slice(&data);
            while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = pending.drain(..=end).collect();
                if let Err(end) = self.take(&line, heard) {
                    return end;
                }
            }
        }
    }

    /// Notes one change.
    fn take(&self, line: &[u8], at: Moment) -> Result<(), End> {
        let event: Event<'_> = serde_json::from_slice(line).map_err(|_| End::Broken)?;
        let head: Head = serde_json::from_str(event.object.get()).map_err(|_| End::Broken)?;
        if event.kind == "ERROR" {
            return Err(if head.code == 410 { End::Gone } else { End::Broken });
        }
        let version: u64 = head.metadata.resource_version.parse().map_err(|_| End::Broken)?;
        self.known.heard_of(version);
        let entry = match head.metadata.labels.contains_key(LABEL) {
            true => self.known.noticed(&head.metadata.name),
            false => self.known.find(&head.metadata.name),
        };
        if let Some(entry) = entry {
            match event.kind {
                "DELETED" => self.known.note_absence(&entry, Some(version)),
                "ADDED" | "MODIFIED" => {
                    let lease = serde_json::from_str::<Lease>(event.object.get());
                    match lease.map_err(|error| error.to_string()).and_then(Object::read) {
                        Ok(object) => drop(self.known.note(&entry, object, at)),
                        // A try reads it too, and says what is wrong with it.
                        Err(_) => self.known.forget(&entry),
                    }
                }
                _ => {}
            }
        }
        self.watcher.after.fetch_max(version, Ordering::SeqCst);
        Ok(())
    }
}
