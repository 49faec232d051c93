//! Limits the concurrent tries on one key, for stores whose tries read the whole queue.
//!
//! The work of claims that enter a queue at once grows with the square of their number. Sent all
//! together they are all answered late, so each is given up and sent again, and none gets through.
//! Here they wait for their turn instead, and the time limit of a try begins with its turn.
//!
//! A try that was woken waits apart from the others: it may be the next to hold the key, and must not
//! stand behind those that only come or keep their places. So has a try that keeps a place: if it
//! stood behind a crowd that comes, the place would end meanwhile, and the first waiter would be the
//! last. While the store answers nobody, tries no longer count after a while, so that a store that has
//! stopped answering delays no try here. One that answers slowly is not asked more for that.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use latchwork_store::{Io, Key, Moment};

/// How long tries count while none of them hears anything.
const SILENT: Duration = Duration::from_millis(250);

/// How many tries that keep a place pass for each one that wants a place. They are short, and read a few places, but at
/// the store each of them may stand behind those that read the whole queue.
const KEEPING: usize = 32;

/// Why a try is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// It wants a place.
    First,
    /// It keeps a place.
    Keeping,
    /// The store has woken it.
    Woken,
}

/// The gates of a manager.
#[derive(Debug)]
pub(crate) struct Gates {
    /// How many tries of each kind pass at a time; none where they need not wait.
    at_once: Option<usize>,
    by_key: Mutex<HashMap<Key, Arc<Gate>>>,
}

#[derive(Debug)]
struct Gate {
    semaphores: [Arc<Semaphore>; 3],
    heard: Arc<Heard>,
}

/// When a try was answered last.
#[derive(Debug, Default)]
struct Heard(AtomicU64);

impl Gates {
    pub(crate) fn new(at_once: Option<usize>) -> Arc<Self> {
        Arc::new(Self { at_once, by_key: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Gate>>> {
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The gate of a key, kept for as long as somebody stands there; `None` if there need be none.
    pub(crate) fn at(self: &Arc<Self>, key: &Key) -> Option<AtGate> {
        let at_once = self.at_once?;
        let mut by_key = self.lock();
        let gate = by_key.entry(key.clone()).or_insert_with(|| {
            let semaphores = [at_once, at_once * KEEPING, at_once];
            let semaphores = semaphores.map(|at_once| Arc::new(Semaphore::new(at_once)));
            Arc::new(Gate { semaphores, heard: Arc::default() })
        });
        Some(AtGate { gate: gate.clone(), key: key.clone(), gates: self.clone() })
    }
}

/// A claim at the gate of its key.
#[derive(Debug)]
pub(crate) struct AtGate {
    gate: Arc<Gate>,
    key: Key,
    gates: Arc<Gates>,
}

impl AtGate {
    /// Waits for a turn.
    pub(crate) async fn pass(&self, reason: Reason) -> Pass {
        let semaphore = self.gate.semaphores[reason as usize].clone();
        // It is never closed; if it were, nobody would have to wait.
        Pass { turn: semaphore.acquire_owned().await.ok(), heard: self.gate.heard.clone() }
    }
}

impl Heard {
    fn now(&self, now: Moment) {
        self.0.fetch_max(now.as_nanos(), Ordering::Relaxed);
    }

    fn last(&self) -> Moment {
        Moment::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

impl Drop for AtGate {
    fn drop(&mut self) {
        let mut by_key = self.gates.lock();
        // This one and the table's: nobody else stands here, and nobody comes while it is locked.
        if Arc::strong_count(&self.gate) == 2 {
            by_key.remove(&self.key);
        }
    }
}

/// The right to have a try under way.
#[derive(Debug)]
pub(crate) struct Pass {
    turn: Option<OwnedSemaphorePermit>,
    heard: Arc<Heard>,
}

impl Pass {
    /// Runs a try, and lets another one pass when it has ended, or when the store has answered nobody
    /// for a while.
    pub(crate) async fn run<T>(mut self, io: &Io, attempt: impl Future<Output = T>) -> T {
        let mut attempt = pin!(attempt);
        let begun = io.now();
        let answer = loop {
            let silent_at = self.heard.last().max(begun).plus(SILENT);
            let left = silent_at.since(io.now());
            if left.is_zero() {
                self.turn = None;
                break attempt.await;
            }
            if let Some(answer) = io.within(left, &mut attempt).await {
                break answer;
            }
        };
        self.heard.now(io.now());
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn is_let_in(pass: &mut std::pin::Pin<Box<dyn Future<Output = Pass> + '_>>) -> Option<Pass> {
        match pass.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(pass) => Some(pass),
            Poll::Pending => None,
        }
    }

    #[test]
    fn each_lane_of_a_key_lets_so_many_in_and_nothing_is_left() {
        let gates = Gates::new(Some(1));
        let (one, other) = (Key::new("k").unwrap(), Key::new("k2").unwrap());
        let at = |key: &Key| gates.at(key).unwrap();
        let (first, second, elsewhere) = (at(&one), at(&one), at(&other));
        let pass = is_let_in(&mut (Box::pin(first.pass(Reason::First)) as _)).unwrap();
        let mut waits: std::pin::Pin<Box<dyn Future<Output = _>>> =
            Box::pin(second.pass(Reason::First));
        assert!(is_let_in(&mut waits).is_none());
        for own in [Reason::Keeping, Reason::Woken] {
            assert!(is_let_in(&mut (Box::pin(second.pass(own)) as _)).is_some());
        }
        assert!(is_let_in(&mut (Box::pin(elsewhere.pass(Reason::First)) as _)).is_some());
        drop(pass);
        assert!(is_let_in(&mut waits).is_some());
        drop(waits);
        drop((first, elsewhere));
        assert_eq!(gates.lock().len(), 1, "somebody stands there yet");
        drop(second);
        assert!(gates.lock().is_empty());
        assert!(Gates::new(None).at(&one).is_none());
    }
}
