//! What this process knows of the objects that its claims are about.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{Shared, join_all};
use latchwork_store::{ClaimId, Doubts, Holder, Moment};
use tokio::sync::{Notify, oneshot};

use crate::lock;
use crate::protocol::object::{Object, Sight};
use crate::protocol::pauses::Pauses;
use crate::server::link::UnderWay;

/// So many objects are known before those that nobody uses are dropped.
const CROWDED: usize = 4_096;
/// So many claims of an object are known before those of long ago are dropped.
const MANY_CLAIMS: usize = 64;
/// The longest ttl, and longer than any place rests.
const LONG_AGO: Duration = Duration::from_secs(24 * 60 * 60);

/// All objects that are known, by their names.
#[derive(Default)]
pub(crate) struct Known {
    entries: Mutex<HashMap<String, Arc<Entry>>>,
    pub(crate) doubts: Doubts,
    /// Counts how often the server turned out to have older data than before.
    restores: AtomicU64,
    /// The newest version of anything that the server has told since then.
    newest: AtomicU64,
}

/// What was known when a request was sent. An answer of older data means that the data were restored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Before {
    restores: u64,
    /// The newest version of the object.
    of_object: u64,
    /// The newest version of anything.
    of_all: u64,
}

/// One object.
pub(crate) struct Entry {
    pub(crate) name: String,
    state: Mutex<State>,
    /// Rings at each change.
    pub(crate) bell: Notify,
    /// The tries of this process come one after another: each would make the others' version old.
    pub(crate) turn: tokio::sync::Mutex<()>,
    /// Pauses for requests that the server answers in contradiction to what it said before.
    pub(crate) pauses: Pauses,
    /// The ends of writes whose verbs were dropped.
    strays: Mutex<Vec<Ended>>,
}

/// The end of a request.
type Ended = Shared<oneshot::Receiver<()>>;

/// A write that a verb waits for. If the verb is dropped, the write is a stray: it may still land.
pub(crate) struct Awaited<'a> {
    entry: &'a Entry,
    ended: Option<Ended>,
}

impl Before {
    /// Whether a read by a quorum that was sent then, and shows this version of its object, shows older data.
    pub(crate) fn is_after_read(self, version: u64) -> bool {
        version < self.of_object
    }

    /// The same of the version that a write or a list has, which is newer than all before it.
    pub(crate) fn is_after(self, version: u64) -> bool {
        version < self.of_all
    }
}

impl Awaited<'_> {
    pub(crate) fn answered(mut self) {
        self.ended = None;
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        let Some(ended) = self.ended.take() else { return };
        let mut strays = lock(&self.entry.strays);
        strays.retain(|other| other.clone().now_or_never().is_none());
        strays.push(ended);
    }
}

impl Entry {
    /// Notes a write that is sent now.
    pub(crate) fn awaits(&self) -> (UnderWay, Awaited<'_>) {
        let (under_way, ended) = oneshot::channel();
        (Arc::new(under_way), Awaited { entry: self, ended: Some(ended.shared()) })
    }

    /// Completes when no earlier stray can land any more. May be dropped.
    pub(crate) async fn strays_landed(&self) {
        let strays = lock(&self.strays).clone();
        join_all(strays).await;
    }
}

#[derive(Default)]
struct State {
    seen: LastView,
    /// The newest version that was seen, also of an object that is gone.
    newest: u64,
    sight: Sight,
    /// When the API server last answered a try of a claim that waits.
    asked: HashMap<ClaimId, Moment>,
    /// The largest token that may have been given before the server's data were restored.
    floor: u64,
    /// The holder before that, and until when it may believe in its hold.
    ousted: Option<(Holder, Moment)>,
}

/// What was last seen of an object.
#[derive(Debug, Clone, Default)]
pub(crate) enum LastView {
    /// Nothing yet.
    #[default]
    Nothing,
    /// There was none.
    Absent,
    Here(Arc<Object>),
}

impl Known {
    /// The entry of an object, which is made if there is none.
    pub(crate) fn entry(&self, name: &str) -> Arc<Entry> {
        let mut entries = lock(&self.entries);
        if let Some(entry) = entries.get(name) {
            return entry.clone();
        }
        if entries.len() >= CROWDED {
            // A later try reads the object again, and counts from then on: late, and never early.
            entries.retain(|_, entry| Arc::strong_count(entry) > 1);
        }
        let entry = Arc::new(Entry {
            name: name.into(),
            state: Mutex::default(),
            bell: Notify::new(),
            turn: tokio::sync::Mutex::default(),
            pauses: Pauses::default(),
            strays: Mutex::default(),
        });
        entries.insert(name.into(), entry.clone());
        entry
    }

    /// The entry of an object, if it is known.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<Entry>> {
        lock(&self.entries).get(name).cloned()
    }

    /// The entry of an object that somebody has changed; none of an unknown one if there are many.
    pub(crate) fn noticed(&self, name: &str) -> Option<Arc<Entry>> {
        let is_crowded = lock(&self.entries).len() >= CROWDED;
        if is_crowded { self.find(name) } else { Some(self.entry(name)) }
    }

    /// Notes an answer of the server that had arrived at this moment. What is older than what is known changes
    /// nothing.
    pub(crate) fn note(&self, entry: &Entry, object: Object, at: Moment) -> Arc<Object> {
        let object = Arc::new(object);
        self.heard_of(object.version);
        let mut state = lock(&entry.state);
        if object.version < state.newest {
            return object;
        }
        state.newest = object.version;
        state.sight = state.sight.at(&object, at);
        let before = std::mem::replace(&mut state.seen, LastView::Here(object.clone()));
        drop(state);
        self.doubt(&before, Some(&object));
        entry.bell.notify_waiters();
        object
    }

    /// Notes that there is no such object, at this version if it is known.
    pub(crate) fn note_absence(&self, entry: &Entry, version: Option<u64>) {
        version.into_iter().for_each(|version| self.heard_of(version));
        let mut state = lock(&entry.state);
        if version.is_some_and(|version| version < state.newest) {
            return;
        }
        state.newest = state.newest.max(version.unwrap_or_default());
        let before = std::mem::replace(&mut state.seen, LastView::Absent);
        drop(state);
        self.doubt(&before, None);
        entry.bell.notify_waiters();
    }

    /// Forgets what was seen: the next look asks the server.
    pub(crate) fn forget(&self, entry: &Entry) {
        lock(&entry.state).seen = LastView::Nothing;
        entry.bell.notify_waiters();
    }

    /// Notes that the server has had this version of anything.
    pub(crate) fn heard_of(&self, version: u64) {
        self.newest.fetch_max(version, Ordering::SeqCst);
    }

    /// What is known now, for a request that is about to be sent.
    pub(crate) fn before(&self, entry: Option<&Entry>) -> Before {
        let restores = self.restores.load(Ordering::SeqCst);
        let of_object = entry.map_or(0, Entry::newest);
        Before { restores, of_object, of_all: self.newest.load(Ordering::SeqCst) }
    }

    /// Starts over: the server's data are older than those that it has shown, so nothing that is known of them counts.
    /// What is seen from now on counts from now on: late, and never early. False if that was done since the request was sent.
    pub(crate) fn start_over(&self, before: Before, now: Moment) -> bool {
        let (was, is) = (before.restores, before.restores + 1);
        if self.restores.compare_exchange(was, is, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return false;
        }
        self.newest.store(0, Ordering::SeqCst);
        let entries: Vec<Arc<Entry>> = lock(&self.entries).values().cloned().collect();
        for entry in entries {
            let mut state = lock(&entry.state);
            let before = std::mem::take(&mut state.seen);
            state.floor = state.floor.max(state.newest);
            if let LastView::Here(object) = &before {
                state.floor = state.floor.max(object.stored.token);
                // It learns of its loss at its next renewal, and believes in its hold until then.
                let ousted = object.holder().map(|(holder, ttl)| (holder, now.plus(ttl)));
                state.ousted = ousted.or(state.ousted.take());
            }
            state.newest = 0;
            state.sight = Sight::default();
            state.asked.clear();
            drop(state);
            self.doubt(&before, None);
            entry.bell.notify_waiters();
        }
        // What was known in the middle of this is of no use.
        self.restores.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// The object whose newest version is known.
    pub(crate) fn last_changed(&self) -> Option<Arc<Entry>> {
        lock(&self.entries).values().max_by_key(|entry| entry.newest()).cloned()
    }

    /// Rings for everybody who waits.
    pub(crate) fn ring_all(&self) {
        lock(&self.entries).values().for_each(|entry| entry.bell.notify_waiters());
    }

    /// Claims that were held and are not: the engine asks for those that are its own.
    fn doubt(&self, before: &LastView, after: Option<&Object>) {
        let LastView::Here(before) = before else { return };
        for part in &before.stored.held {
            if after.is_none_or(|after| after.token_of(part.id).is_none()) {
                self.doubts.raise(part.id);
            }
        }
    }
}

impl Entry {
    pub(crate) fn seen(&self) -> (LastView, Sight) {
        let state = lock(&self.state);
        (state.seen.clone(), state.sight.clone())
    }

    pub(crate) fn newest(&self) -> u64 {
        lock(&self.state).newest
    }

    /// The version of the object that was seen last.
    pub(crate) fn version(&self) -> Option<u64> {
        match &lock(&self.state).seen {
            LastView::Here(object) => Some(object.version),
            _ => None,
        }
    }

    pub(crate) fn is_here(&self) -> bool {
        matches!(lock(&self.state).seen, LastView::Here(_))
    }

    /// The largest token that may have been given before the server's data were restored.
    pub(crate) fn floor(&self) -> u64 {
        lock(&self.state).floor
    }

    /// The holder before the server's data were restored, and for how long it may believe in its hold yet.
    pub(crate) fn ousted(&self, now: Moment) -> Option<(Holder, Duration)> {
        let mut state = lock(&self.state);
        let (holder, until) = state.ousted.clone()?;
        let left = until.since(now);
        if left.is_zero() {
            state.ousted = None;
            return None;
        }
        Some((holder, left))
    }

    /// When the server last answered a try of this claim.
    pub(crate) fn asked(&self, id: ClaimId) -> Option<Moment> {
        lock(&self.state).asked.get(&id).copied()
    }

    pub(crate) fn note_asked(&self, id: ClaimId, now: Moment) {
        let mut state = lock(&self.state);
        if state.asked.len() >= MANY_CLAIMS {
            // A waiting claim asks more often; one that is missing here asks the server once more.
            state.asked.retain(|_, asked| now.since(*asked) < LONG_AGO);
        }
        state.asked.insert(id, now);
    }

    pub(crate) fn forget_asked(&self, id: ClaimId) {
        lock(&self.state).asked.remove(&id);
    }
}
