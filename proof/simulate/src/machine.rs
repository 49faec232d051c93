//! A machine: its clocks, and its tasks, which run only while it does.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use latchwork_store::clock::Steps;
use latchwork_store::{Clock, Io, Moment, Sleep};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::planted::Planted;

const BOOT: Duration = Duration::from_secs(1_000);
const WALL: Duration = Duration::from_secs(1_800_000_000);

/// One process on a machine with clocks of its own.
pub(crate) struct Machine {
    pub(crate) clock: MachineClock,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    stopped: u32,
    dead: bool,
    /// What was woken while it was stopped.
    asleep: Vec<Waker>,
    tasks: Vec<AbortHandle>,
    /// How many tasks call for a look at all of them.
    crowded: usize,
    started: u32,
    went_on: Option<Instant>,
    stopped_since: Option<Instant>,
    stopped_for: Duration,
}

impl Machine {
    pub(crate) fn new(clock: MachineClock) -> Arc<Self> {
        Arc::new(Self { clock, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a task on it: it is polled only while the machine runs, and ends with the machine.
    pub(crate) fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let task = tokio::spawn(OnMachine { machine: self.clone(), task: Box::pin(task) });
        let mut state = self.lock();
        if state.dead {
            task.abort();
        }
        if state.tasks.len() >= state.crowded {
            state.tasks.retain(|task| !task.is_finished());
            state.crowded = 16.max(state.tasks.len() * 2);
        }
        state.tasks.push(task.abort_handle());
    }

    /// The tasks and the clock that it lends to an engine.
    pub(crate) fn io(self: &Arc<Self>, planted: Option<Planted>) -> Io {
        let this = Arc::downgrade(self);
        let spawn = move |task| {
            let Some(this) = this.upgrade() else { return };
            let mut state = this.lock();
            state.started += 1;
            let forgotten = planted == Some(Planted::TasksAreForgotten) && state.started % 3 == 0;
            drop(state);
            if !forgotten {
                this.spawn(task);
            }
        };
        Io::new(spawn, Arc::new(self.clock.clone()))
    }

    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.stopped += 1;
        state.stopped_since.get_or_insert_with(Instant::now);
    }

    /// How long it has run since some start: without its stops.
    pub(crate) fn ran(&self) -> Duration {
        let state = self.lock();
        let now = state.stopped_since.map_or(Duration::ZERO, |since| since.elapsed());
        self.clock.0.start.elapsed() - state.stopped_for - now
    }

    pub(crate) fn go_on(&self) {
        let mut state = self.lock();
        state.stopped -= 1;
        if state.stopped == 0 {
            state.went_on = Some(Instant::now());
            let stopped = state.stopped_since.take();
            state.stopped_for += stopped.map_or(Duration::ZERO, |since| since.elapsed());
            let asleep = std::mem::take(&mut state.asleep);
            drop(state);
            asleep.into_iter().for_each(Waker::wake);
        }
    }

    /// Ends it: its tasks are dropped, and what they do meanwhile reaches nobody.
    pub(crate) fn kill(&self) {
        let mut state = self.lock();
        state.dead = true;
        let tasks = std::mem::take(&mut state.tasks);
        drop(state);
        tasks.iter().for_each(AbortHandle::abort);
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.lock().dead
    }

    /// When it last went on after a stop.
    pub(crate) fn went_on(&self) -> Option<Instant> {
        self.lock().went_on
    }
}

/// A task of a machine.
struct OnMachine {
    machine: Arc<Machine>,
    task: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Future for OnMachine {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.machine.lock();
        if state.dead {
            return Poll::Ready(());
        }
        if state.stopped > 0 {
            state.asleep.push(cx.waker().clone());
            return Poll::Pending;
        }
        drop(state);
        self.task.as_mut().poll(cx)
    }
}

/// The clocks of a machine: their rate, and what they have missed.
#[derive(Clone)]
pub(crate) struct MachineClock(Arc<Inner>);

struct Inner {
    start: Instant,
    /// Millionths by which it is fast.
    rate: i64,
    /// How late its timers are.
    late_by: Duration,
    hands: Mutex<Hands>,
    steps: Arc<Steps>,
}

#[derive(Default)]
struct Hands {
    /// By how much the boot clock is behind because it stood still.
    missed: Duration,
    wall_missed: Duration,
    standing_since: Option<Instant>,
}

impl MachineClock {
    pub(crate) fn new(rate: i64, late_by: Duration) -> Self {
        let (start, hands) = (Instant::now(), Mutex::default());
        Self(Arc::new(Inner { start, rate, late_by, hands, steps: Arc::default() }))
    }

    fn hands(&self) -> MutexGuard<'_, Hands> {
        self.0.hands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The clock stands still.
    pub(crate) fn stand(&self) {
        self.hands().standing_since.get_or_insert_with(Instant::now);
    }

    /// The clock runs again, and the wall clock is set right.
    pub(crate) fn run(&self) {
        self.run_on(true);
    }

    /// The clock runs again; the wall clock is set right, or has missed the same.
    pub(crate) fn run_on(&self, set_right: bool) {
        let mut hands = self.hands();
        if let Some(since) = hands.standing_since.take() {
            hands.missed += since.elapsed();
            if !set_right {
                hands.wall_missed += since.elapsed();
            }
        }
        drop(hands);
        if set_right {
            self.0.steps.tell();
        }
    }

    pub(crate) fn is_standing(&self) -> bool {
        self.hands().standing_since.is_some()
    }

    /// What has passed on the boot clock, and on the wall clock.
    fn passed(&self) -> (Duration, Duration) {
        let hands = self.hands();
        let stands = hands.standing_since.map_or(Duration::ZERO, |since| since.elapsed());
        let world = self.0.start.elapsed() - stands;
        let boot = scaled(world.saturating_sub(hands.missed), self.0.rate);
        (boot, scaled(world.saturating_sub(hands.wall_missed), self.0.rate))
    }
}

/// The length on a clock that is fast by so many millionths.
fn scaled(time: Duration, rate: i64) -> Duration {
    let nanos = time.as_nanos() as i128;
    Duration::from_nanos((nanos + nanos * i128::from(rate) / 1_000_000) as u64)
}

impl fmt::Debug for MachineClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MachineClock").field("rate", &self.0.rate).finish_non_exhaustive()
    }
}

impl Clock for MachineClock {
    fn now(&self) -> Moment {
        Moment::from_nanos(0).plus(BOOT + self.passed().0)
    }

    fn wall(&self) -> Duration {
        WALL + self.passed().1
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        if at == Moment::NEVER {
            return Box::pin(std::future::pending());
        }
        let clock = self.clone();
        Box::pin(async move {
            loop {
                let left = at.since(clock.now());
                if left.is_zero() {
                    break;
                }
                // About what passes in the world meanwhile; a look at the clock decides.
                tokio::time::sleep(scaled(left, -clock.0.rate)).await;
            }
            if !clock.0.late_by.is_zero() {
                tokio::time::sleep(clock.0.late_by).await;
            }
        })
    }

    fn stepped(&self) -> Sleep {
        self.0.steps.next()
    }
}
