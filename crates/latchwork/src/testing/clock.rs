//! A clock that is paused until a test moves it.
//!
//! It belongs to no runtime, so it serves tasks on any of them and threads that block. Each sleeper
//! whose time has come is watched until it was polled, so that a test can let them all run before the
//! clock moves on.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use latchwork_store::clock::Steps;
use latchwork_store::{Clock, Moment, Sleep};

/// What the boot clock shows at the start: not zero, so that subtracting too much shows.
const START: Moment = Moment::from_nanos(1_000_000_000_000);

/// The clock as the engine and the store read it.
#[derive(Debug)]
pub(super) struct StandingClock(pub(super) Arc<Hands>);

impl Clock for StandingClock {
    fn now(&self) -> Moment {
        self.0.lock().now
    }

    fn wall(&self) -> Duration {
        let hands = self.0.lock();
        hands.wall_at_start + hands.now.since(START)
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        Box::pin(Nap { hands: self.0.clone(), at, number: None })
    }

    fn stepped(&self) -> Sleep {
        self.0.steps.next()
    }
}

/// What moves the clock, and who sleeps on it.
pub(super) struct Hands {
    state: Mutex<State>,
    all_up: Condvar,
    steps: Arc<Steps>,
}

struct State {
    now: Moment,
    wall_at_start: Duration,
    sleepers: BTreeMap<(Moment, u64), Waker>,
    last: u64,
    /// Sleepers that were woken and not polled yet.
    woken: BTreeSet<u64>,
    closed: bool,
}

impl Hands {
    /// A clock whose wall clock shows this at the start, as time since 1970.
    pub(super) fn new(wall_at_start: Duration) -> Arc<Self> {
        let state = State {
            now: START,
            wall_at_start,
            sleepers: BTreeMap::new(),
            last: 0,
            woken: BTreeSet::new(),
            closed: false,
        };
        let (state, all_up) = (Mutex::new(state), Condvar::new());
        Arc::new(Self { state, all_up, steps: Arc::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Moment {
        self.lock().now
    }

    /// How long the clock has run.
    pub(super) fn elapsed(&self) -> Duration {
        self.now().since(START)
    }

    /// Lets the wall clock show this, as time since 1970, where it starts.
    pub(super) fn set_wall_at_start(&self, wall: Duration) {
        self.lock().wall_at_start = wall;
    }

    /// Moves the wall clock alone, and tells those who watch it.
    pub(super) fn step_wall(&self, by: Duration) {
        self.lock().wall_at_start += by;
        self.steps.tell();
    }

    /// Moves to the next sleeper's time and wakes it; `false` if none sleeps until `end`, and then the
    /// clock shows that.
    pub(super) fn step(&self, end: Moment) -> bool {
        let next = self.lock().sleepers.first_key_value().map(|((at, _), _)| *at);
        match next.filter(|at| *at <= end) {
            Some(at) => {
                self.jump(at);
                true
            }
            None => {
                self.jump(end);
                false
            }
        }
    }

    /// Moves to `to` at once, and wakes all whose time has come then.
    pub(super) fn jump(&self, to: Moment) {
        let mut state = self.lock();
        let now = state.now.max(to);
        state.now = now;
        let later = state.sleepers.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut state.sleepers, later);
        state.woken.extend(due.keys().map(|(_, number)| *number));
        drop(state);
        // Not under the lock: a sleeper may be polled at once.
        due.into_values().for_each(Waker::wake);
    }

    /// Whether every sleeper that was woken was polled since.
    pub(super) fn are_all_up(&self) -> bool {
        self.lock().woken.is_empty()
    }

    /// Waits for that, but no longer than this.
    pub(super) fn wait_until_up(&self, limit: Duration) {
        let state = self.lock();
        let waited = self.all_up.wait_timeout_while(state, limit, |state| !state.woken.is_empty());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Blocks the thread for so long, in real time.
    pub(super) fn rest(&self, length: Duration) {
        drop(self.all_up.wait_timeout_while(self.lock(), length, |_| true));
    }

    /// Waits no longer for those that were woken and are not polled.
    pub(super) fn give_up(&self) {
        self.lock().woken.clear();
    }

    /// Lets go of all sleepers; later ones never wake.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let sleepers = std::mem::take(&mut state.sleepers);
        // A waker may own a task, and drops it here: not under the lock.
        drop(state);
        drop(sleepers);
    }
}

impl fmt::Debug for Hands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hands").field("now", &self.now()).finish_non_exhaustive()
    }
}

/// A sleep on the clock.
struct Nap {
    hands: Arc<Hands>,
    at: Moment,
    number: Option<u64>,
}

impl Future for Nap {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut state = this.hands.lock();
        if let Some(number) = this.number
            && state.woken.remove(&number)
            && state.woken.is_empty()
        {
            this.hands.all_up.notify_all();
        }
        if state.now >= this.at {
            return Poll::Ready(());
        }
        if this.at == Moment::NEVER || state.closed {
            return Poll::Pending;
        }
        let number = *this.number.get_or_insert_with(|| {
            state.last += 1;
            state.last
        });
        let old = state.sleepers.insert((this.at, number), cx.waker().clone());
        drop(state);
        drop(old);
        Poll::Pending
    }
}

impl Drop for Nap {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut state = self.hands.lock();
        let old = state.sleepers.remove(&(self.at, number));
        if state.woken.remove(&number) && state.woken.is_empty() {
            self.hands.all_up.notify_all();
        }
        drop(state);
        drop(old);
    }
}
