//! Watches the store for changes of locks that other processes hold, while there are listeners.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::mem::replace;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use latchwork::FencingToken;
use latchwork_store::{Clock, Key, Moment};
use tokio::sync::watch;

use super::event::LockEvent;
use super::hub::Hub;
use crate::domain::lock_lists::LockLists;
use crate::domain::lock_status::LockStatus;
use crate::time::{pause, spawn};

/// The shortest pause between two lists.
const SHORTEST: Duration = Duration::from_secs(1);

/// The ratio of the pause to the time that a list takes: many listeners must not burden the store.
const SHARE: u32 = 20;

/// The longest pause because lists take long: a person looks at them, in an incident above all.
const LONGEST: Duration = Duration::from_secs(30);

/// How long an ended hold of this service is remembered: the store may have been read before its end.
const REMEMBERED: Duration = Duration::from_secs(60);

/// A hold: the hash of its key and its token, because a key may be long. Two equal hashes hide an event.
type Id = u64;

/// Compares what the store shows with what it showed before, and publishes the differences.
#[derive(Debug)]
pub(crate) struct StoreWatch {
    state: Mutex<State>,
    lists: Arc<LockLists>,
    hub: Arc<Hub>,
    clock: Arc<dyn Clock>,
    /// Set when the service begins to stop.
    stopping: watch::Receiver<bool>,
}

#[derive(Debug, Default)]
struct State {
    is_running: bool,
    /// The holds of this service. It publishes their events itself, at once.
    own: HashSet<Id>,
    ended: HashSet<Id>,
    /// The same, in the order of their ends.
    in_order: VecDeque<(Moment, Id)>,
    before: Option<Observation>,
    hash: RandomState,
}

/// A hold of another process.
#[derive(Debug)]
struct OtherHold {
    name: String,
    token: Option<FencingToken>,
}

/// The content of the store at one time.
#[derive(Debug, Default)]
struct Observation {
    holds: HashMap<Id, OtherHold>,
    /// The texts of the waiters, by the names of their locks.
    waiters: HashMap<String, Vec<String>>,
}

/// The first of `more` that is not among `fewer`, each counted as often as it is there.
fn added(more: &[String], fewer: &[String]) -> Option<String> {
    let mut fewer: Vec<_> = fewer.iter().collect();
    let is_new = |text: &&String| match fewer.iter().position(|it| it == text) {
        Some(at) => {
            fewer.swap_remove(at);
            false
        }
        None => true,
    };
    more.iter().find(is_new).cloned()
}

impl State {
    fn id(&self, key: &str, token: Option<FencingToken>) -> Id {
        self.hash.hash_one((key, token))
    }

    /// Removes the holds that ended long ago.
    fn sweep(&mut self, now: Moment) {
        while let Some((at, id)) = self.in_order.front() {
            if now.since(*at) < REMEMBERED {
                break;
            }
            self.ended.remove(id);
            self.in_order.pop_front();
        }
    }

    /// Enters a new hold of this service.
    fn add_own(&mut self, key: &Key, token: FencingToken) {
        let id = self.id(key.as_str(), Some(token));
        self.own.insert(id);
    }

    /// Removes a hold of this service that has ended.
    fn remove_own(&mut self, key: &Key, token: FencingToken, now: Moment) {
        let id = self.id(key.as_str(), Some(token));
        self.own.remove(&id);
        self.ended.insert(id);
        self.in_order.push_back((now, id));
        self.sweep(now);
    }

    /// The differences to the locks before.
    fn changes(&mut self, locks: &[LockStatus], now: Moment) -> Vec<LockEvent> {
        self.sweep(now);
        let mut new = Observation::default();
        let mut changes = Vec::new();
        let before = self.before.take();
        for lock in locks {
            for holder in &lock.holders {
                let id = self.id(&lock.key, holder.token);
                if self.own.contains(&id) || self.ended.contains(&id) {
                    continue;
                }
                let is_new = before.as_ref().is_some_and(|it| !it.holds.contains_key(&id));
                new.holds.insert(id, OtherHold { name: lock.name.clone(), token: holder.token });
                if is_new {
                    changes.push(LockEvent {
                        token: holder.token,
                        holder: Some(holder.holder.clone()),
                        mode: Some(holder.mode),
                        ..LockEvent::new("granted", lock.name.clone())
                    });
                }
            }
            if !lock.waiters.is_empty() {
                let texts = lock.waiters.iter().map(|waiter| waiter.holder.clone()).collect();
                new.waiters.insert(lock.name.clone(), texts);
            }
        }
        if let Some(before) = before {
            for (id, hold) in &before.holds {
                if !new.holds.contains_key(id) {
                    let event = LockEvent::new("released", hold.name.clone());
                    changes.push(LockEvent { token: hold.token, ..event });
                }
            }
            let names: HashSet<&String> = before.waiters.keys().chain(new.waiters.keys()).collect();
            for name in names {
                let of = |it: &Observation| it.waiters.get(name).cloned().unwrap_or_default();
                let (was, is) = (of(&before), of(&new));
                let (word, holder) = match was.len().cmp(&is.len()) {
                    Ordering::Equal => continue,
                    Ordering::Less => ("waiting", added(&is, &was)),
                    Ordering::Greater => ("withdrawn", added(&was, &is)),
                };
                let (waiters, event) = (Some(is.len()), LockEvent::new(word, name.clone()));
                changes.push(LockEvent { waiters, holder, ..event });
            }
        }
        self.before = Some(new);
        changes.iter_mut().for_each(|event| event.by = "store");
        changes
    }
}

impl StoreWatch {
    pub(crate) fn new(
        lists: Arc<LockLists>,
        hub: Arc<Hub>,
        clock: Arc<dyn Clock>,
        stopping: watch::Receiver<bool>,
    ) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), lists, hub, clock, stopping })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a new hold of this service.
    pub(crate) fn add_own(&self, key: &Key, token: FencingToken) {
        let mut state = self.lock();
        if state.is_running {
            state.add_own(key, token);
        }
    }

    /// Removes a hold of this service that has ended.
    pub(crate) fn remove_own(&self, key: &Key, token: FencingToken) {
        self.lock().remove_own(key, token, self.clock.now());
    }

    /// Watches the store from now on, until there are no listeners. `own` tells the holds of this service.
    pub(crate) fn start(self: &Arc<Self>, own: impl FnOnce() -> Vec<(Key, FencingToken)>) {
        if replace(&mut self.lock().is_running, true) {
            return;
        }
        // Those that begin from now on are entered by themselves, and those that end are among the ended.
        let own = own();
        let mut state = self.lock();
        for (key, token) in own {
            let id = state.id(key.as_str(), Some(token));
            if !state.ended.contains(&id) {
                state.own.insert(id);
            }
        }
        drop(state);
        spawn(run(Arc::downgrade(self)));
    }

    /// Whether to go on. After an end, the next start compares with nothing.
    fn goes_on(&self) -> bool {
        let mut state = self.lock();
        // Counted under the lock: a listener that comes later starts the watch again.
        state.is_running = self.hub.listeners() > 0;
        if !state.is_running {
            (state.before, state.own) = (None, HashSet::new());
        }
        state.is_running
    }
}

async fn run(watch: Weak<StoreWatch>) {
    let mut before = Duration::MAX;
    let mut is_silent = false;
    loop {
        let Some(watch) = watch.upgrade() else { return };
        if *watch.stopping.borrow() || !watch.goes_on() {
            return;
        }
        let start = watch.clock.now();
        // If the store does not answer, there is nothing to compare, and nothing to learn about how long a list takes.
        let list = watch.lists.fresh("", start).await;
        let took = watch.clock.now().since(start);
        let rest = match list {
            Ok(list) => {
                if replace(&mut is_silent, false) {
                    watch.hub.publish(about_the_store("reachable"));
                }
                let changes = watch.lock().changes(&list.locks, start);
                changes.into_iter().for_each(|event| watch.hub.publish(event));
                // One long list may be the end of an outage.
                rest_after(took.min(replace(&mut before, took)))
            }
            Err(_) => {
                if !replace(&mut is_silent, true) {
                    watch.hub.publish(about_the_store("unreachable"));
                }
                SHORTEST
            }
        };
        drop(watch);
        pause(rest).await;
    }
}

/// How long the store is left alone where a list takes so long: at least as long as that.
fn rest_after(usual: Duration) -> Duration {
    SHORTEST.max(usual.saturating_mul(SHARE).min(LONGEST)).max(usual)
}

fn about_the_store(word: &'static str) -> LockEvent {
    LockEvent { by: "store", ..LockEvent::new(word, "") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latchwork_store::{Mode, Party, Snapshot};

    fn lock(name: &str, tokens: &[u64], waiters: usize) -> LockStatus {
        let seen = Snapshot::free(Key::new(name).unwrap()).with(|it| {
            let holder =
                |token: &u64| Party::new(Mode::Exclusive, "me").with(|it| it.token = Some(*token));
            it.holders = tokens.iter().map(holder).collect();
            it.waiters = vec![Party::new(Mode::Exclusive, "you"); waiters];
        });
        LockStatus::new(name, &seen)
    }

    fn changes(state: &mut State, locks: &[LockStatus]) -> Vec<(&'static str, String)> {
        let changes = state.changes(locks, Moment::from_nanos(0));
        let mut changes: Vec<_> = changes.into_iter().map(|it| (it.word, it.name)).collect();
        changes.sort();
        changes
    }

    #[test]
    fn slow_lists_are_followed_by_pauses_that_end() {
        let ms = Duration::from_millis;
        for (took, rest) in [(3, 1_000), (200, 4_000), (7_000, 30_000), (40_000, 40_000)] {
            assert_eq!(rest_after(ms(took)), ms(rest));
        }
    }

    #[test]
    fn changes_at_the_store_are_told_once() {
        let mut state = State::default();
        assert_eq!(changes(&mut state, &[lock("a", &[1], 0)]), [], "the first list");
        assert_eq!(
            changes(&mut state, &[lock("a", &[1], 1), lock("b", &[2], 0)]),
            [("granted", "b".into()), ("waiting", "a".into())]
        );
        assert_eq!(changes(&mut state, &[lock("a", &[1], 1), lock("b", &[2], 0)]), []);
        assert_eq!(
            changes(&mut state, &[lock("a", &[3], 0)]),
            [
                ("granted", "a".into()),
                ("released", "a".into()),
                ("released", "b".into()),
                ("withdrawn", "a".into())
            ]
        );
    }

    #[test]
    fn holds_of_the_service_are_not_told_twice() {
        let mut state = State::default();
        let (key, token) = (Key::new("a").unwrap(), FencingToken::from_grant(1));
        assert_eq!(changes(&mut state, &[]), []);
        state.add_own(&key, token);
        assert_eq!(changes(&mut state, &[lock("a", &[1], 0)]), []);
        state.remove_own(&key, token, Moment::from_nanos(0));
        // The store was read before the release.
        assert_eq!(changes(&mut state, &[lock("a", &[1], 0)]), []);
        assert_eq!(changes(&mut state, &[]), []);
    }
}
