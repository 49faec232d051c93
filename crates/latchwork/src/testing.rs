//! A store for tests of code that takes locks: the test controls its clock, revokes locks and
//! injects failures.
//!
//! Needs the feature `testing`, as a development dependency:
//!
//! ```toml
//! [dev-dependencies]
//! latchwork = { version = "0.1", features = ["testing"] }
//! ```
//!
//! Give the code under test a [`LockManager`] instead of an address. In the program it comes from
//! [`connect`](fn@crate::connect), in a test from [`TestStore::locks`]. Everything above the store is the real
//! library: the queue, renewal, the watchdog, releases in the background.
//!
//! # The clock is paused
//!
//! No lock expires, and no renewal is sent, unless the test moves the clock:
//!
//! ```
//! use std::time::Duration;
//! use latchwork::testing::{Call, TestStore};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), latchwork::Error> {
//! let store = TestStore::new();
//! let guard = store.locks().mutex("nightly").acquire().await?;
//! store.advance(Duration::from_secs(3600)).await;
//! assert!(guard.ensure_held().is_ok()); // renewed every 10 s
//! assert!(store.count(Call::Renew) >= 359);
//!
//! store.suspend(Duration::from_secs(31)).await; // the process is suspended for longer than its ttl
//! assert!(guard.ensure_held().is_err());
//! # Ok(())
//! # }
//! ```
//!
//! # A lock is lost
//!
//! ```
//! use latchwork::testing::TestStore;
//! use latchwork::{HoldState, LostReason};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), latchwork::Error> {
//! let store = TestStore::new();
//! let guard = store.locks().mutex("nightly").acquire().await?;
//! store.take_away("nightly").await;
//! assert_eq!(guard.lost().await.reason, LostReason::Taken);
//! assert!(matches!(guard.state(), HoldState::Lost(_)));
//! # Ok(())
//! # }
//! ```
//!
//! # Calls fail
//!
//! ```
//! use latchwork::ErrorKind;
//! use latchwork::testing::{Answer, Call, TestStore};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), latchwork::Error> {
//! let store = TestStore::new();
//! let lock = store.locks().mutex("nightly");
//! store.script(Call::Acquire, 1, Answer::Denied);
//! assert_eq!(lock.try_acquire().await.unwrap_err().kind(), ErrorKind::Denied);
//! assert!(lock.try_acquire().await?.is_some()); // the second call is none of the script's
//! # Ok(())
//! # }
//! ```
//!
//! # Calls are counted
//!
//! ```
//! use latchwork::testing::{Call, TestStore};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), latchwork::Error> {
//! let store = TestStore::new();
//! let guard = store.locks().mutex("nightly").acquire().await?;
//! drop(guard); // released in the background
//! store.settle().await;
//! assert_eq!(store.count_of("nightly", Call::Release), 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Runtimes
//!
//! A store has one thread of its own and needs no runtime: it works in every flavor of `#[tokio::test]`, in
//! other executors, and in plain tests with [`block_on`](fn@crate::block_on) at the end of each call. Stores
//! share nothing, so tests run side by side. The thread sleeps while it has nothing to do, and ends when the
//! store, its managers and their guards are dropped.
//!
//! # What does not go together
//!
//! - **Time limits of tokio.** The clock of a store is its own. `tokio::time::sleep`, `timeout` and `advance`
//!   neither move it nor are moved by it. In a test with `start_paused = true`, tokio's clock jumps whenever the
//!   runtime is idle, also while the store's thread is at work: a `timeout` around a call of Latchwork may end
//!   at once there. Use [`acquire_within`](crate::Lock::acquire_within), or leave tokio's clock alone.
//! - **A wait in the task that moves the clock.** A call that has to wait for a retry, a time limit or another
//!   holder's ttl waits until somebody moves the clock. Let [`run_within`](TestStore::run_within) move it
//!   meanwhile; or run the call in another task or thread, wait for it with
//!   [`until_called`](TestStore::until_called), then [`advance`](TestStore::advance).
//! - **Calls of an observer.** An [`Observer`](crate::Observer) that blocks on `advance`, `suspend`, `settle` or
//!   `take_away` waits for itself.
//! - **`connect`.** Code that opens a store by its address does not see a test store. Other processes and
//!   forked children do not see it either.

mod backend;
mod clock;
mod script;

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use latchwork_store::clock::{boot_time, wall_time};
use latchwork_store::{
    Backend, Claim, Doubts, Io, Key, Linger, MemoryBackend, Mode, Moment, Query, Stamp,
};

use crate::locks::manager::LockManager;
use crate::runtime::driver::{Driver, start_thread};
use crate::runtime::own::Own;
use crate::runtime::workers::Workers;
use backend::ScriptedBackend;
use clock::{Hands, StandingClock};
use latchwork_wire::yield_now;
use script::Script;
pub use script::{Answer, Call};

/// How often tasks of the test get a turn, after nothing is left to do, before the clock moves on.
const TURNS: u32 = 32;
/// How long, in real time, a task that was woken may take until it is polled.
const POLL_PATIENCE: Duration = Duration::from_millis(100);
/// How long, in real time, work on other threads may take to end once the clock has run out.
const LAST_PATIENCE: Duration = Duration::from_millis(500);
/// How long a thread is blocked at a time for those.
const NAP: Duration = Duration::from_millis(1);

/// An in-memory store that a test controls: clock, locks and answers.
///
/// Clones are the same store. See [the module](self) for examples, and for what does not go together.
#[derive(Clone)]
pub struct TestStore(Arc<Own<Parts>>);

struct Parts {
    memory: Arc<MemoryBackend>,
    io: Io,
    script: Arc<Script>,
    doubts: Doubts,
    /// Held by the one that moves the clock.
    moving: tokio::sync::Mutex<()>,
    runner: Arc<Own<Runner>>,
}

/// What the managers of a store run on, until the last of them is dropped.
struct Runner {
    workers: Arc<Workers>,
    hands: Arc<Hands>,
    script: Arc<Script>,
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.workers.close();
        // What sleeps or is pending for ever is kept by its waker alone.
        self.hands.close();
        self.script.resume();
    }
}

impl TestStore {
    /// Creates an empty store. Its wall clock starts at the machine's time and is paused.
    pub fn new() -> Self {
        Self::with_wall(None)
    }

    /// Creates an empty store whose wall clock starts at `time`, for tasks that run once in a
    /// [`Period`](crate::Period). A time before 1970 counts as 1970.
    pub fn starting_at(time: SystemTime) -> Self {
        Self::with_wall(Some(time.duration_since(UNIX_EPOCH).unwrap_or_default()))
    }

    fn with_wall(wall: Option<Duration>) -> Self {
        let hands = Hands::new(wall_time());
        let script = Arc::new(Script::default());
        let workers = Workers::new(1, |work| start_thread("latchwork-test", work).is_ok());
        let own = workers.clone();
        let spawn = move |task| {
            assert!(own.spawn(task).is_ok(), "the system gives no thread for a test store");
        };
        let io = Io::new(spawn, Arc::new(StandingClock(hands.clone())));
        // Its tokens count from the time of the machine, so that a fence that several tests share
        // refuses none of a later store.
        let memory = MemoryBackend::new(io.clone());
        if let Some(wall) = wall {
            hands.set_wall_at_start(wall);
        }
        let origin = io.origin();
        let runner = Runner { workers, hands, script: script.clone() };
        let runner = Arc::new(Own::new(origin, runner));
        let (doubts, moving) = (Doubts::default(), tokio::sync::Mutex::new(()));
        Self(Arc::new(Own::new(origin, Parts { memory, io, script, doubts, moving, runner })))
    }

    /// Returns a manager on this store, with the default settings: a ttl of 30 s.
    ///
    /// Each call creates another client, as another process would be. Clones of one manager are the
    /// same client, in which waiters share a place in the queue and hand a lock to each other.
    ///
    /// # Panics
    ///
    /// Panics if the system gives no thread.
    pub fn locks(&self) -> LockManager {
        let Parts { memory, io, script, doubts, runner, .. } = &**self.0;
        let backend = ScriptedBackend {
            inner: memory.beside(),
            script: script.clone(),
            doubts: doubts.clone(),
        };
        let runner = runner.clone();
        LockManager::new(Arc::new(backend), Driver::on(io.clone(), move || drop(runner)))
    }

    /// Returns how long the clock has run since the store was made: the sum of
    /// [`advance`](Self::advance) and [`suspend`](Self::suspend).
    pub fn elapsed(&self) -> Duration {
        self.hands().elapsed()
    }

    /// Advances the clock by `by`, running each renewal, retry and timeout on the way.
    ///
    /// Returns when Latchwork has done what was due and nothing more is to do; tasks of the test
    /// that wait for Latchwork have been polled. On a runtime of several threads, they may still be
    /// running: wait for them as your test would anyway. A task that does not poll what it waits
    /// for delays the call by 100 ms of real time.
    ///
    /// Calls of several tasks follow each other, and their times add up.
    ///
    /// # Panics
    ///
    /// Panics if the clock cannot count so far (584 years).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the clock on its way.
    pub async fn advance(&self, by: Duration) {
        let _moving = self.0.moving.lock().await;
        self.settle().await;
        let end = self.after(by);
        while self.hands().step(end) {
            self.settle().await;
        }
        self.settle().await;
    }

    /// Jumps the clock by `by`, as if the process had been suspended. Nothing is renewed on the
    /// way. Timers that are due by then fire afterwards, so a hold with a shorter ttl is lost.
    ///
    /// Returns as [`advance`](Self::advance) does.
    ///
    /// # Panics
    ///
    /// Panics if the clock cannot count so far (584 years).
    ///
    /// # Cancel safety
    ///
    /// The clock is moved once the future was polled, or not at all.
    pub async fn suspend(&self, by: Duration) {
        let _moving = self.0.moving.lock().await;
        self.hands().jump(self.after(by));
        self.settle().await;
    }

    /// Advances the wall clock by `by` and no other, as on a virtual machine that was paused. By more
    /// than a second, each hold is [`Suspect`](crate::HoldState::Suspect) until the store confirms it.
    ///
    /// The engine asks the store at once, on another thread. To see the doubt, make the store
    /// [unreachable](Self::set_reachable) before.
    pub fn pause_machine(&self, by: Duration) {
        self.hands().step_wall(by);
    }

    /// Runs `work`, advancing the clock whenever everything waits.
    ///
    /// Use it for calls that wait for a retry, a time limit, or another holder's ttl. Each step
    /// goes to the next timer that is due. Returns `None`, and drops `work`, if `work` has not
    /// ended when the clock has advanced by `limit`.
    ///
    /// `work` runs in the calling task, so it may wait for other tasks, and for real time as well: then the
    /// clock runs ahead of it. It must not move the clock itself, for calls that do follow each other.
    ///
    /// # Panics
    ///
    /// Panics if the clock cannot count so far (584 years).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`, and leaves the clock where it is.
    pub async fn run_within<F: Future>(&self, limit: Duration, work: F) -> Option<F::Output> {
        let _moving = self.0.moving.lock().await;
        let end = self.after(limit);
        let (mut work, mut end_since) = (pin!(work), None);
        loop {
            let mut settling = pin!(self.settle());
            let ended = poll_fn(|cx| match work.as_mut().poll(cx) {
                Poll::Ready(output) => Poll::Ready(Some(output)),
                Poll::Pending => settling.as_mut().poll(cx).map(|()| None),
            });
            if let Some(output) = ended.await {
                return Some(output);
            }
            if self.hands().now() < end {
                self.hands().step(end);
            } else if boot_time().since(*end_since.get_or_insert_with(boot_time)) > LAST_PATIENCE {
                return None;
            } else {
                // It may have ended on another thread, and the word of it is on its way.
                self.hands().rest(NAP);
            }
        }
    }

    fn after(&self, by: Duration) -> Moment {
        let end = self.hands().now().plus(by);
        assert!(end != Moment::NEVER, "the clock cannot count {by:?} further");
        end
    }

    /// Waits until Latchwork has nothing to do, without moving the clock: dropped guards are
    /// released, and woken tasks have run.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn settle(&self) {
        let (workers, hands) = (&self.0.runner.workers, self.hands());
        let (mut turns, mut waits_since) = (0, None);
        while turns < TURNS {
            yield_now().await;
            turns = if workers.wait_idle(NAP) { turns + 1 } else { 0 };
            // What runs on this thread has had its turns by then; other threads may need longer.
            if turns == TURNS && !hands.are_all_up() {
                let since = *waits_since.get_or_insert_with(boot_time);
                if boot_time().since(since) < POLL_PATIENCE {
                    hands.wait_until_up(NAP);
                    turns = 0;
                } else {
                    hands.give_up();
                }
            }
        }
    }

    /// Revokes a lock, as if the store had lost it, and returns the number of holders.
    ///
    /// The holders are notified, as after a forced release. The number is 0 if the lock was free, 1
    /// for a mutex, and may be larger for a read-write lock or a semaphore.
    ///
    /// `key` is the lock's name at the store: with a [namespace](LockManager::namespace),
    /// `namespace:name`.
    ///
    /// Afterwards each of their guards is [`Lost`](crate::HoldState::Lost) with
    /// [`Taken`](crate::LostReason::Taken), and the lock is free or the next waiter's. A guard
    /// learns of it by a renewal, which is counted and answered by the script like any other: while
    /// renewals are scripted to fail, the guard relies on its hold until its validity ends.
    ///
    /// # Panics
    ///
    /// Panics if `key` is no key: empty, or longer than 64 KiB.
    ///
    /// # Cancel safety
    ///
    /// The lock is revoked once the future was polled; dropping it only stops waiting for the
    /// holders.
    pub async fn take_away(&self, key: impl AsRef<str>) -> usize {
        let Parts { memory, io, doubts, .. } = &**self.0;
        let key = checked(key.as_ref());
        let query = Query::Key(key.clone());
        let seen = memory.inspect(&query).await.expect("memory answers");
        let holders = seen.into_iter().flat_map(|it| it.holders).filter_map(|party| party.id);
        let holders: Vec<_> = holders.collect();
        for id in &holders {
            // A claim is known by its id alone.
            let claim = Claim::new(
                key.clone(),
                *id,
                Mode::Exclusive,
                Duration::from_secs(1),
                Stamp::new(io.now()),
            );
            memory.release(&claim, Linger::None).await.expect("memory answers");
            doubts.raise(*id);
        }
        self.settle().await;
        holders.len()
    }

    /// Answers the next `times` calls of this kind with `answer`, whatever their key. Later ones
    /// are carried out.
    ///
    /// Answers for a key are used before answers for all keys, and earlier ones first. After
    /// [`Unreachable`](Answer::Unreachable) and [`AnswerLost`](Answer::AnswerLost), an acquire that
    /// waits retries, at first 10 ms later, and so do releases in the background. A renewal is
    /// repeated after a thirtieth of the ttl. Each retry is a call, and happens when the clock
    /// reaches its time. `try_acquire` does not retry.
    ///
    /// # Panics
    ///
    /// Panics if the call cannot have this answer: [`Held`](Answer::Held) and
    /// [`Quarantined`](Answer::Quarantined) are answers of [`Call::Acquire`] alone.
    pub fn script(&self, call: Call, times: u32, answer: Answer) {
        self.0.script.add(None, call, times, answer);
    }

    /// Like [`script`](Self::script), for the calls of one key, as the store names it: with a
    /// namespace, `namespace:name`. [`list`](LockManager::list) has no key.
    ///
    /// # Panics
    ///
    /// As [`script`](Self::script), and if `key` is no key: empty, or longer than 64 KiB.
    pub fn script_of(&self, key: impl AsRef<str>, call: Call, times: u32, answer: Answer) {
        self.0.script.add(Some(checked(key.as_ref())), call, times, answer);
    }

    /// Resumes all calls that are [`Pending`](Answer::Pending) now. Later ones are pending again,
    /// as the script says.
    pub fn resume(&self) {
        self.0.script.resume();
    }

    /// Makes every call of every client [`Unreachable`](Answer::Unreachable), until the store is
    /// reachable again. Meanwhile calls are counted, and no scripted answer is used up.
    ///
    /// Holds last until their validity ends, a little less than their ttl after their last renewal.
    pub fn set_reachable(&self, reachable: bool) {
        self.0.script.set_reachable(reachable);
    }

    /// Returns how many calls of this kind the store has received, answered or not.
    ///
    /// A drop releases in the background: [`settle`](Self::settle) before you count.
    pub fn count(&self, call: Call) -> u64 {
        self.0.script.count(None, call)
    }

    /// Like [`count`](Self::count), for the calls of one key, as the store names it: with a
    /// namespace, `namespace:name`.
    ///
    /// # Panics
    ///
    /// Panics if `key` is no key: empty, or longer than 64 KiB.
    pub fn count_of(&self, key: impl AsRef<str>, call: Call) -> u64 {
        self.0.script.count(Some(checked(key.as_ref())), call)
    }

    /// Completes when the store has received `times` calls of this kind since it was made. Use it
    /// to wait until a task of the code under test has begun to wait: `until_called(Call::Wait,
    /// 1)`.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time; nothing is missed.
    pub async fn until_called(&self, call: Call, times: u64) {
        self.0.script.called(call, times).await;
    }

    fn hands(&self) -> &Arc<Hands> {
        &self.0.runner.hands
    }
}

impl Default for TestStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for TestStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestStore").field("elapsed", &self.elapsed()).finish_non_exhaustive()
    }
}

fn checked(key: &str) -> Key {
    Key::new(key).unwrap_or_else(|error| panic!("{key:?} is no key: {error}"))
}
