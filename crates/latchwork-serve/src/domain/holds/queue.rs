//! The waiting requests of this service. The store does not know all of them: requests for a lock that another
//! client of this service holds share one place in its queue.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use latchwork_store::Moment;

use crate::domain::lock_status::{LockStatus, PartyStatus};

/// The requests that wait, by the names of their locks, in the order of their arrival.
#[derive(Debug, Default, Clone)]
pub(crate) struct Queue(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    last: u64,
    waiting: HashMap<String, Vec<Entry>>,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    holder: Arc<str>,
    /// The candidate's text in an election, which a store may not show for a waiter.
    candidate: Option<Arc<str>>,
    mode: &'static str,
    since: Moment,
}

/// The place of a waiting request, until it is dropped.
#[derive(Debug)]
pub(crate) struct QueuePlace {
    queue: Queue,
    number: u64,
    names: Vec<String>,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a request for locks, each a name with its mode.
    pub(crate) fn enter<'a>(
        &self,
        locks: impl Iterator<Item = (&'a str, &'static str)>,
        holder: &Arc<str>,
        candidate: Option<&str>,
        now: Moment,
    ) -> QueuePlace {
        let mut state = self.lock();
        state.last += 1;
        let number = state.last;
        let mut names = Vec::new();
        for (name, mode) in locks {
            let (holder, candidate) = (holder.clone(), candidate.map(Arc::from));
            let entry = Entry { number, holder, candidate, mode, since: now };
            state.waiting.entry(name.to_owned()).or_default().push(entry);
            names.push(name.to_owned());
        }
        drop(state);
        QueuePlace { queue: self.clone(), number, names }
    }

    /// Adds to a lock the waiters of this service that the store does not know.
    pub(crate) fn complete(&self, lock: &mut LockStatus, now: Moment) {
        let state = self.lock();
        let Some(waiting) = state.waiting.get(&lock.name) else { return };
        let mut known: Vec<usize> = (0..lock.waiters.len()).collect();
        for entry in waiting {
            let same = |at: &usize| {
                let party = &lock.waiters[*at];
                *party.holder == *entry.holder && party.mode == entry.mode
            };
            let candidate = entry.candidate.as_deref().map(str::to_owned);
            if let Some(at) = known.iter().position(same) {
                let party = &mut lock.waiters[known.remove(at)];
                party.candidate = party.candidate.take().or(candidate);
                continue;
            }
            lock.waiters.push(PartyStatus {
                holder: entry.holder.to_string(),
                candidate,
                mode: entry.mode,
                permits: None,
                token: None,
                age: Some(now.since(entry.since)),
                remaining: None,
                is_latchwork: true,
                value: None,
                session: None,
            });
        }
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        for name in &self.names {
            if let Some(waiting) = state.waiting.get_mut(name) {
                waiting.retain(|entry| entry.number != self.number);
                if waiting.is_empty() {
                    state.waiting.remove(name);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latchwork_store::{Key, Mode, Party, Snapshot};

    #[test]
    fn each_waiter_is_shown_once() {
        let (queue, now) = (Queue::default(), Moment::from_nanos(0));
        let locks = || [("a", "exclusive")].into_iter();
        let _one = queue.enter(locks(), &"one".into(), Some("10.0.0.1"), now);
        let two = queue.enter(locks(), &"two".into(), None, now);
        let seen = Snapshot::free(Key::new("a").unwrap())
            .with(|it| it.waiters = vec![Party::new(Mode::Exclusive, "one")]);
        let shown = |queue: &Queue| -> Vec<String> {
            let mut lock = LockStatus::new("a", &seen);
            queue.complete(&mut lock, now);
            lock.waiters.into_iter().map(|it| it.holder).collect()
        };
        assert_eq!(shown(&queue), ["one", "two"]);
        let mut lock = LockStatus::new("a", &seen);
        queue.complete(&mut lock, now);
        assert_eq!(lock.waiters[0].candidate.as_deref(), Some("10.0.0.1"));
        drop(two);
        assert_eq!(shown(&queue), ["one"]);
    }
}
