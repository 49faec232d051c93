//! The scripted answers of a test store, and the counts of its calls.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use latchwork_store::clock::Steps;
use latchwork_store::{BackendError, BackendErrorKind, Effect, Key, Sleep};

/// A kind of request from Latchwork to the store, not of a call from your code to Latchwork.
///
/// One call of your code may be several of these, or none: see each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Call {
    /// Tries to acquire a lock, once. An acquire that waits tries again, with the same id, whenever
    /// the lock may be free. An acquire that gets the lock from another waiter of its process sends
    /// no request.
    Acquire,
    /// Waits until a retry may succeed. Follows an acquire that was blocked.
    Wait,
    /// Renews one lock. Sent every third of its ttl, and whenever the hold is in doubt.
    Renew,
    /// Releases a lock, or withdraws an abandoned acquire. Repeated until it is answered, or until
    /// the ttl ends. A guard that hands its lock to another waiter of its process does not send it.
    Release,
    /// Reads the holders and the waiters: [`inspect`](crate::LockManager::inspect) and
    /// [`list`](crate::LockManager::list), and the first step of
    /// [`force_release`](crate::LockManager::force_release).
    Inspect,
}

/// The [scripted](super::TestStore::script) answer to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Answer {
    /// The call does not reach the store: an error of the kind [`Unreachable`](crate::ErrorKind::Unreachable),
    /// and nothing is changed.
    Unreachable,
    /// The call is carried out and its answer is lost: an error of the kind
    /// [`Unreachable`](crate::ErrorKind::Unreachable) that
    /// [may have applied](crate::Error::may_have_applied).
    AnswerLost,
    /// Credentials or rights were refused: an error of the kind [`Denied`](crate::ErrorKind::Denied).
    Denied,
    /// The data in the store is damaged: an error of the kind
    /// [`Corrupt`](crate::ErrorKind::Corrupt).
    Corrupt,
    /// Another client holds the lock, for [`Call::Acquire`] alone. Not an error: `try_acquire` answers `None`,
    /// and an acquire that waits asks again after one second.
    Held,
    /// The store has lost its data and grants nothing for now, for [`Call::Acquire`] alone. Not an error:
    /// `try_acquire` answers `None`, and an acquire that waits asks again after one second. If its time is over
    /// before that, the error says that the store is in quarantine.
    Quarantined,
    /// The call is on its way until [`resume`](super::TestStore::resume), and is carried out then. If it is
    /// dropped before that, or reaches its time limit (2 s at the default ttl), it never reaches the store.
    Pending,
}

impl Answer {
    /// The error of a call that fails so. An acquire that is blocked does not fail.
    pub(super) fn error(self) -> BackendError {
        use BackendErrorKind::{Corrupt, Denied, Unreachable};
        let (kind, effect, message) = match self {
            Self::AnswerLost => (Unreachable, Effect::Unknown, "the answer was lost"),
            Self::Denied => (Denied, Effect::NotApplied, "the store refuses this client"),
            Self::Corrupt => (Corrupt, Effect::NotApplied, "what the store holds is damaged"),
            Self::Unreachable | Self::Held | Self::Quarantined | Self::Pending => {
                (Unreachable, Effect::NotApplied, "the store cannot be reached")
            }
        };
        BackendError::new(kind, effect, format!("{message}, as the test says"))
    }
}

/// The scripted answer to a call.
pub(super) struct Scripted {
    pub(super) answer: Option<Answer>,
    /// Completes when the call is to go on, if it is pending.
    pub(super) resumed: Sleep,
}

/// The script of a store, and its count of calls.
#[derive(Debug, Default)]
pub(super) struct Script {
    state: Mutex<State>,
    called: Arc<Steps>,
    resumed: Arc<Steps>,
}

#[derive(Debug, Default)]
struct State {
    unreachable: bool,
    /// How many calls are answered so, in turn.
    answers: HashMap<CallOn, VecDeque<(u32, Answer)>>,
    counts: HashMap<CallOn, u64>,
}

/// A kind of call, of one key or of all.
type CallOn = (Option<Key>, Call);

impl Script {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers the next calls so, after those that were scripted before.
    pub(super) fn add(&self, key: Option<Key>, call: Call, times: u32, answer: Answer) {
        let is_of_acquire = matches!(answer, Answer::Held | Answer::Quarantined);
        assert!(
            call == Call::Acquire || !is_of_acquire,
            "{answer:?} is an answer of Call::Acquire alone, not of Call::{call:?}"
        );
        if times > 0 {
            self.lock().answers.entry((key, call)).or_default().push_back((times, answer));
        }
    }

    pub(super) fn set_reachable(&self, reachable: bool) {
        self.lock().unreachable = !reachable;
    }

    /// Counts a call, and says what is scripted for it.
    pub(super) fn take(&self, key: Option<&Key>, call: Call) -> Scripted {
        // From before the call is known of: it is not pending for longer than the test says.
        let resumed = self.resumed.next();
        let mut state = self.lock();
        *state.counts.entry((None, call)).or_default() += 1;
        if let Some(key) = key {
            *state.counts.entry((Some(key.clone()), call)).or_default() += 1;
        }
        let answer = match state.unreachable {
            true => Some(Answer::Unreachable),
            false => key
                .and_then(|key| state.next(Some(key.clone()), call))
                .or_else(|| state.next(None, call)),
        };
        drop(state);
        self.called.tell();
        Scripted { answer, resumed }
    }

    pub(super) fn count(&self, key: Option<Key>, call: Call) -> u64 {
        self.lock().counts.get(&(key, call)).copied().unwrap_or(0)
    }

    /// Completes when there were so many calls.
    pub(super) async fn called(&self, call: Call, times: u64) {
        loop {
            let next = self.called.next();
            if self.count(None, call) >= times {
                return;
            }
            next.await;
        }
    }

    /// Lets all calls go on that are pending now.
    pub(super) fn resume(&self) {
        self.resumed.tell();
    }
}

impl State {
    fn next(&mut self, key: Option<Key>, call: Call) -> Option<Answer> {
        let answers = self.answers.get_mut(&(key, call))?;
        let (times, answer) = answers.front_mut()?;
        let answer = *answer;
        *times -= 1;
        if *times == 0 {
            answers.pop_front();
        }
        Some(answer)
    }
}
