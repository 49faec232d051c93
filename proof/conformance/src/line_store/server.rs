//! The store's side: ordered nodes under leases, one global revision, watches.
//!
//! Each method is one request that the store serves atomically.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use latchwork_store::{ClaimId, Holder, Io, Key, Mode, Moment};
use tokio::sync::Notify;

/// A node in a line.
#[derive(Debug, Clone)]
pub(super) struct StoredNode {
    /// The store's revision when it was made: its order, and its token.
    pub(super) revision: u64,
    pub(super) id: ClaimId,
    pub(super) mode: Mode,
    pub(super) holder: Holder,
    /// When its lease ends unless kept alive.
    pub(super) ends: Moment,
}

/// The server of a line store: what ZooKeeper and etcd have in common.
#[derive(Debug)]
pub(super) struct Server {
    io: Io,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    revision: u64,
    lines: BTreeMap<Key, Vec<StoredNode>>,
    watches: Vec<(u64, Arc<Notify>)>,
}

impl Server {
    pub(super) fn new(io: Io) -> Arc<Self> {
        Arc::new(Self { io, state: Mutex::default() })
    }

    /// Makes a node at the end of the line or, if the claim has one, starts its lease anew.
    pub(super) fn create(
        &self,
        key: &Key,
        id: ClaimId,
        mode: Mode,
        holder: &Holder,
        ttl: Duration,
    ) {
        let mut state = self.state();
        let ends = self.io.now().plus(ttl);
        state.revision += 1;
        let revision = state.revision;
        let line = state.lines.entry(key.clone()).or_default();
        match line.iter_mut().find(|node| node.id == id) {
            Some(node) => node.ends = ends,
            None => {
                let holder = holder.clone();
                line.push(StoredNode { revision, id, mode, holder, ends });
            }
        }
    }

    /// The line of a key, in order.
    pub(super) fn list(&self, key: &Key) -> Vec<StoredNode> {
        self.state().lines.get(key).cloned().unwrap_or_default()
    }

    /// The lines of all keys that start so.
    pub(super) fn list_all(&self, prefix: &str) -> Vec<(Key, Vec<StoredNode>)> {
        let state = self.state();
        let named = state.lines.iter().filter(|(key, _)| key.as_str().starts_with(prefix));
        named.map(|(key, line)| (key.clone(), line.clone())).collect()
    }

    /// Starts the lease of a node anew; false if there is no such node.
    pub(super) fn keep_alive(&self, key: &Key, id: ClaimId, ttl: Duration) -> bool {
        let mut state = self.state();
        let ends = self.io.now().plus(ttl);
        let nodes = state.lines.get_mut(key).into_iter().flatten();
        nodes.filter(|node| node.id == id).map(|node| node.ends = ends).count() > 0
    }

    /// Deletes a node; false if there is no such node.
    pub(super) fn delete(&self, key: &Key, id: ClaimId) -> bool {
        self.state().remove(|of, node| of == key && node.id == id)
    }

    /// Tells `watch` when a node with one of these revisions goes away, from now on.
    pub(super) fn subscribe(&self, revisions: &[u64], watch: &Arc<Notify>) {
        let watches = revisions.iter().map(|revision| (*revision, watch.clone()));
        self.state().watches.extend(watches);
    }

    pub(super) fn unsubscribe(&self, watch: &Arc<Notify>) {
        self.state().watches.retain(|(_, other)| !Arc::ptr_eq(other, watch));
    }

    /// When the first of these nodes will go by itself; `None` if one has gone.
    pub(super) fn first_end(&self, key: &Key, revisions: &[u64]) -> Option<Moment> {
        let state = self.state();
        let line = state.lines.get(key)?;
        let ends = |revision: &u64| {
            line.iter().find(|node| node.revision == *revision).map(|node| node.ends)
        };
        revisions.iter().map(ends).try_fold(Moment::NEVER, |first, end| Some(first.min(end?)))
    }

    /// The state, after all that has ended was taken out.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.io.now();
        state.remove(|_, node| node.ends <= now);
        state
    }
}

impl State {
    fn remove(&mut self, goes: impl Fn(&Key, &StoredNode) -> bool) -> bool {
        let mut gone = Vec::new();
        for (key, line) in &mut self.lines {
            gone.extend(line.extract_if(.., |node| goes(key, node)).map(|node| node.revision));
        }
        self.lines.retain(|_, line| !line.is_empty());
        for (_, watch) in self.watches.iter().filter(|(revision, _)| gone.contains(revision)) {
            watch.notify_one(); // kept until its owner waits
        }
        self.watches.retain(|(revision, _)| !gone.contains(revision));
        !gone.is_empty()
    }
}
