//! Events that operators and programs want to see. A thread of Python takes them and logs them: the threads of the engine
//! never take the GIL.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use latchwork::{Event, Observer};
use latchwork_store::clock::{Moment, boot_time};
use latchwork_store::{FencingToken, Holder, Key};
use pyo3::prelude::*;
use pyo3::types::PyType;
use tokio::sync::{Notify, mpsc};

use crate::counts::Counts;
use crate::operation::Operation;
use crate::outcomes::{Object, Outcome, duration, seconds};

/// Events that nobody has taken; those beyond are counted.
const MOST: usize = 1024;

/// One event.
struct Item {
    connection: u64,
    kind: &'static str,
    key: Key,
    token: Option<u64>,
    /// What happened; of a loss, its reason is apart.
    text: String,
    reason: Option<&'static str>,
}

impl Object for Item {
    fn into_object(
        self: Box<Self>,
        py: Python<'_>,
        _: Option<&Bound<'_, PyType>>,
    ) -> PyResult<Py<PyAny>> {
        let it = *self;
        let parts = (it.connection, it.kind, it.key.as_str(), it.token, it.text, it.reason);
        Ok(parts.into_pyobject(py)?.into_any().unbind())
    }
}

/// The events of all connections of this process.
#[pyclass(frozen, module = "latchwork._native")]
pub(crate) struct News {
    sent: mpsc::Sender<Item>,
    taken: Arc<tokio::sync::Mutex<mpsc::Receiver<Item>>>,
    ended: Arc<Notify>,
    shared: Arc<Counted>,
}

/// What is not sent by itself.
#[derive(Default)]
struct Counted {
    dropped: AtomicUsize,
    waits: Mutex<Waits>,
}

/// The keys of connections that calls wait for.
type Waits = HashMap<(u64, Key), Wait>;

struct Wait {
    calls: usize,
    since: Moment,
    /// The last holder that is known.
    holder: Option<Arc<str>>,
}

/// Connection, key, seconds, and the holder if it is known.
type LongWait = (u64, String, f64, Option<String>);

impl Counted {
    fn waits(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl News {
    #[new]
    fn new() -> Self {
        let (sent, taken) = mpsc::channel(MOST);
        let taken = Arc::new(tokio::sync::Mutex::new(taken));
        Self { sent, taken, ended: Arc::default(), shared: Arc::default() }
    }

    /// Completes with the next event; with `...` at the end.
    fn next(&self) -> Operation {
        let (taken, ended) = (self.taken.clone(), self.ended.clone());
        Operation::new(async move {
            let mut taken = taken.lock().await;
            tokio::select! {
                biased;
                () = ended.notified() => Ok(Outcome::End),
                item = taken.recv() => Ok(match item {
                    Some(item) => Outcome::Object(Box::new(item)),
                    None => Outcome::End,
                }),
            }
        })
    }

    /// Has the thread end that takes the events.
    fn end(&self) {
        self.ended.notify_one();
    }

    /// The keys that calls have waited for longer than that.
    fn waits(&self, longer_than: f64) -> PyResult<Vec<LongWait>> {
        let (limit, now) = (duration(longer_than, "longer_than")?, boot_time());
        let waits = self.shared.waits();
        let long = waits.iter().filter(|(_, wait)| now.since(wait.since) >= limit);
        let long = long.map(|((connection, key), wait)| {
            let holder = wait.holder.as_deref().map(str::to_owned);
            (*connection, key.as_str().to_owned(), seconds(now.since(wait.since)), holder)
        });
        Ok(long.collect())
    }

    /// How many events were dropped since the last call, because nobody took them.
    fn dropped(&self) -> usize {
        self.shared.dropped.swap(0, Ordering::Relaxed)
    }
}

impl News {
    pub(crate) fn observer(&self, connection: u64, store: &str) -> Arc<Seen> {
        Arc::new(Seen {
            connection,
            counts: Counts::of(store),
            sent: self.sent.clone(),
            shared: self.shared.clone(),
            is_closing: AtomicBool::new(false),
            failing: Mutex::default(),
        })
    }
}

/// The observer of one connection.
pub(crate) struct Seen {
    pub(crate) connection: u64,
    sent: mpsc::Sender<Item>,
    shared: Arc<Counted>,
    counts: Arc<Counts>,
    is_closing: AtomicBool,
    /// The keys whose last request has failed.
    failing: Mutex<HashSet<Key>>,
}

impl Seen {
    /// The program closes the connection: that its holds end is no news.
    pub(crate) fn close(&self) {
        self.is_closing.store(true, Ordering::SeqCst);
    }

    fn send(
        &self,
        kind: &'static str,
        key: &Key,
        token: Option<FencingToken>,
        text: String,
        reason: Option<&'static str>,
    ) {
        let token = token.map(FencingToken::get);
        let item =
            Item { connection: self.connection, kind, key: key.clone(), token, text, reason };
        if self.sent.try_send(item).is_err() {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn failing(&self) -> MutexGuard<'_, HashSet<Key>> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first failure is news, and not each retry.
    fn fails(&self, kind: &'static str, key: &Key, token: Option<FencingToken>, text: String) {
        let is_new = self.failing().insert(key.clone());
        if is_new {
            self.send(kind, key, token, text, None);
        }
    }

    fn answers(&self, key: &Key) {
        let failed = {
            let mut failing = self.failing();
            !failing.is_empty() && failing.remove(key)
        };
        if failed {
            self.send("answers", key, None, "the store answers again".to_owned(), None);
        }
    }
}

impl Observer for Seen {
    fn event(&self, event: &Event<'_>) {
        self.counts.event(event);
        match *event {
            Event::WaitBegan { key } => {
                let mut waits = self.shared.waits();
                let begun = || Wait { calls: 0, since: boot_time(), holder: None };
                waits.entry((self.connection, key.clone())).or_insert_with(begun).calls += 1;
            }
            Event::WaitEnded { key, .. } => {
                let wait = (self.connection, key.clone());
                let mut waits = self.shared.waits();
                if let Some(waiting) = waits.get_mut(&wait) {
                    waiting.calls -= 1;
                    if waiting.calls == 0 {
                        waits.remove(&wait);
                    }
                }
            }
            Event::Waiting { key, blocked } => {
                self.answers(key);
                let holder = blocked.holder.as_ref().map(Holder::shown);
                let mut waits = self.shared.waits();
                if let Some(waiting) = waits.get_mut(&(self.connection, key.clone())) {
                    waiting.holder = holder;
                }
            }
            Event::Acquired { key, .. } | Event::Renewed { key, .. } => self.answers(key),
            Event::TryFailed { key, error } => {
                self.fails("unreachable", key, None, format!("an acquire is retried: {error}"));
            }
            Event::RenewFailed { key, token, error, remaining } => {
                let text = format!("a renewal is retried for {remaining:.1?}: {error}");
                self.fails("unreachable", key, Some(token), text);
            }
            Event::Suspect { key, token } => {
                let text = "the hold is in doubt until the store confirms it".to_owned();
                self.send("suspect", key, Some(token), text, None);
            }
            Event::Lost { key, token, lost, held } => {
                self.failing().remove(key);
                if !self.is_closing.load(Ordering::SeqCst) {
                    let text = format!("{lost} (held for {held:.1?})");
                    self.send("lost", key, Some(token), text, Some(lost.reason.word()));
                }
            }
            Event::ReleaseFailed { key, held, error } => {
                self.failing().remove(key);
                let text = format!("a release failed, and the ttl ends the lock: {error}");
                self.send("release_failed", key, held.map(|it| it.0), text, None);
            }
            _ => {}
        }
    }
}
