//! Looks at the store for what happens to locks that other processes hold, while somebody listens.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::mem::replace;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use latchwork::FencingToken;
use latchwork::store::{Key, Moment};

use super::hub::EventView;
use crate::domain::service::Service;
use crate::http::views::LockView;
use crate::time::{pause, spawn};

/// The shortest pause between two looks.
const SHORTEST: Duration = Duration::from_secs(1);

/// The pause is so many times as long as a look takes: what many listeners see must not burden the store.
const SHARE: u32 = 20;

/// How long it is remembered that a hold was of this service: a look may have begun before its end.
const REMEMBERED: Duration = Duration::from_secs(60);

/// A hold: its key and its token, as a hash, because a key may be long. Two that are the same hide an event.
type Id = u64;

/// What was seen at the store.
#[derive(Debug, Default)]
pub(crate) struct Others(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    is_looking: bool,
    /// The holds of this service. They are told by itself, at once.
    ours: HashSet<Id>,
    ended: HashSet<Id>,
    /// The same, in the order of their ends.
    in_order: VecDeque<(Moment, Id)>,
    seen: Option<Seen>,
    hash: RandomState,
}

/// A hold as one look has shown it.
#[derive(Debug)]
struct Held {
    name: String,
    token: String,
}

/// What one look has shown.
#[derive(Debug, Default)]
struct Seen {
    holds: HashMap<Id, Held>,
    waiters: HashMap<String, usize>,
}

impl State {
    fn id(&self, key: &str, token: &str) -> Id {
        self.hash.hash_one((key, token))
    }

    /// Forgets the holds that ended long ago. Each release pays for as many as it finds.
    fn forget(&mut self, now: Moment) {
        while let Some((at, id)) = self.in_order.front() {
            if now.since(*at) < REMEMBERED {
                break;
            }
            self.ended.remove(id);
            self.in_order.pop_front();
        }
    }
}

impl Others {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A hold of this service began.
    pub(crate) fn ours(&self, key: &Key, token: FencingToken) {
        let mut state = self.lock();
        let id = state.id(key.as_str(), &token.to_string());
        state.ours.insert(id);
    }

    /// A hold of this service ended.
    pub(crate) fn not_ours(&self, key: &Key, token: FencingToken, now: Moment) {
        let mut state = self.lock();
        let id = state.id(key.as_str(), &token.to_string());
        state.ours.remove(&id);
        state.ended.insert(id);
        state.in_order.push_back((now, id));
        state.forget(now);
    }

    /// Somebody listens: looks from now on, until nobody does.
    pub(crate) fn wanted(&self, service: &Arc<Service>) {
        if !replace(&mut self.lock().is_looking, true) {
            spawn(look(Arc::downgrade(service)));
        }
    }

    /// What has changed since the last look.
    fn changes(&self, locks: &[LockView], now: Moment) -> Vec<EventView> {
        let mut state = self.lock();
        state.forget(now);
        let mut new = Seen::default();
        let mut changes = Vec::new();
        let before = state.seen.take();
        for lock in locks {
            for holder in &lock.holders {
                let token = holder.token.clone().unwrap_or_default();
                let id = state.id(&lock.key, &token);
                if state.ours.contains(&id) || state.ended.contains(&id) {
                    continue;
                }
                let is_new = before.as_ref().is_some_and(|seen| !seen.holds.contains_key(&id));
                new.holds.insert(id, Held { name: lock.name.clone(), token: token.clone() });
                if is_new {
                    let mut event = EventView::new("granted", lock.name.clone());
                    event.token = Some(token).filter(|token| !token.is_empty());
                    event.holder = Some(holder.holder.clone());
                    event.mode = Some(holder.mode);
                    changes.push(event);
                }
            }
            if !lock.waiters.is_empty() {
                new.waiters.insert(lock.name.clone(), lock.waiters.len());
            }
        }
        if let Some(before) = before {
            for (id, held) in &before.holds {
                if !new.holds.contains_key(id) {
                    let mut event = EventView::new("released", held.name.clone());
                    event.token = Some(held.token.clone()).filter(|token| !token.is_empty());
                    changes.push(event);
                }
            }
            let names: HashSet<&String> = before.waiters.keys().chain(new.waiters.keys()).collect();
            for name in names {
                let count = |seen: &Seen| seen.waiters.get(name).copied().unwrap_or_default();
                let (was, is) = (count(&before), count(&new));
                if was != is {
                    let word = if is > was { "waiting" } else { "withdrawn" };
                    let mut event = EventView::new(word, name.clone());
                    event.waiters = Some(is);
                    changes.push(event);
                }
            }
        }
        state.seen = Some(new);
        changes.iter_mut().for_each(|event| event.by = "store");
        changes
    }

    /// Whether to look on; a listener that comes later begins anew.
    fn goes_on(&self, listeners: usize) -> bool {
        let mut state = self.lock();
        state.is_looking = listeners > 0;
        if !state.is_looking {
            state.seen = None;
        }
        state.is_looking
    }
}

async fn look(service: Weak<Service>) {
    loop {
        let Some(service) = service.upgrade() else { return };
        if service.is_stopping() || !service.others.goes_on(service.hub.listeners()) {
            return;
        }
        let start = service.clock.now();
        // A store that does not answer shows nothing.
        if let Ok(locks) = service.list("", start).await {
            for event in service.others.changes(&locks.locks, start) {
                service.hub.tell(event);
            }
        }
        let took = service.clock.now().since(start);
        drop(service);
        pause(SHORTEST.max(took * SHARE)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latchwork::store::{Mode, Party, Snapshot};

    fn lock(name: &str, tokens: &[u64], waiters: usize) -> LockView {
        let seen = Snapshot::free(Key::new(name).unwrap()).with(|it| {
            let holder =
                |token: &u64| Party::new(Mode::Exclusive, "me").with(|it| it.token = Some(*token));
            it.holders = tokens.iter().map(holder).collect();
            it.waiters = vec![Party::new(Mode::Exclusive, "you"); waiters];
        });
        LockView::new(name, &seen)
    }

    fn told(others: &Others, locks: &[LockView]) -> Vec<(&'static str, String)> {
        let mut told: Vec<_> = others
            .changes(locks, Moment::from_nanos(0))
            .into_iter()
            .map(|it| (it.event, it.name))
            .collect();
        told.sort();
        told
    }

    #[test]
    fn changes_at_the_store_are_told_once() {
        let others = Others::default();
        assert_eq!(told(&others, &[lock("a", &[1], 0)]), [], "the first look");
        assert_eq!(
            told(&others, &[lock("a", &[1], 1), lock("b", &[2], 0)]),
            [("granted", "b".into()), ("waiting", "a".into())]
        );
        assert_eq!(told(&others, &[lock("a", &[1], 1), lock("b", &[2], 0)]), []);
        assert_eq!(
            told(&others, &[lock("a", &[3], 0)]),
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
        let (others, key, token) =
            (Others::default(), Key::new("a").unwrap(), FencingToken::from_grant(1));
        assert_eq!(told(&others, &[]), []);
        others.ours(&key, token);
        assert_eq!(told(&others, &[lock("a", &[1], 0)]), []);
        others.not_ours(&key, token, Moment::from_nanos(0));
        // A look that began before the release.
        assert_eq!(told(&others, &[lock("a", &[1], 0)]), []);
        assert_eq!(told(&others, &[]), []);
    }
}
