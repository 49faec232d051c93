//! Tasks that run once in each period.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::time::Duration;

use crate::hold::guard::Guard;
use crate::locks::lock::Lock;
use crate::locks::period::Period;
use crate::wait::acquire::Admission;
use crate::wait::patience::Patience;
use latchwork_store::{Error, ErrorKind, Lost, Moment};

mod length;
mod reset;
mod skipped;

use self::length::shown;

pub use self::reset::Reset;
pub use self::skipped::Skipped;

/// How far the clocks of hosts may differ without a period being skipped.
const MOST_CLOCKS_DIFFER: Duration = Duration::from_secs(60);

/// How far they may differ without a period being done twice: a key stays closed for so much longer.
const CLOSED_LONGER: Duration = Duration::from_secs(1);

/// By which part of a long period the end of a closed key may differ from that of the period, with
/// clocks that are further apart. A time zone of another hour differs by more than that of a day.
const SLACK: u32 = 100;

/// The next step if a task is closed until a later moment than the end of its period. That can be
/// years away, so check the clocks first: a host whose clock is wrong closes it again.
const TOO_LONG: &str = "use one period on all hosts and check their clocks; then open the task with \
                        `latchwork once --reset NAME` (in a program: `Once::reset`)";

/// The next step if it is closed until an earlier one.
const ANOTHER: &str = "use one period on all hosts, and check their clocks";

/// How long to wait before a store that is late to open a key is asked again.
const LOOK: Duration = Duration::from_millis(100);

/// A task that runs once in each period, on one of the callers.
///
/// Use it for jobs that a scheduler starts on several machines but that must run once: a nightly
/// report, an hourly mail. Every machine tries at the scheduled time. One caller gets a [`Run`];
/// the others learn that the task is running or done.
///
/// # Guarantees
///
/// - Success closes the period in which the run *started*: the task does not run again before it
///   ends. A run that ends in a later period closes no period, so the later one is open for its own
///   run.
/// - Failure opens the task again at once, for this or another host. So does dropping the run.
/// - A host that dies leaves the task to others after the ttl.
/// - A late try counts for the period in which it is granted. A period without a try is skipped.
///
/// The wall clock of the host that runs the task decides which period it is. Clocks may differ
/// slightly. The key stays closed for a second longer (a twentieth of a short period), so that a
/// host whose clock is late by that much does not run the task again. A caller that tries at the
/// start of a period and finds the previous one still closed waits for its end, for up to half a
/// period and at most a minute.
///
/// If the task is closed until a moment that differs from the end of the period by more than a
/// minute and by more than a hundredth of the period, the answer is an error, because the cause is
/// a wrong clock or another period. [`reset`](Once::reset) opens the task then. A run that
/// continues into the next period prevents that one from beginning elsewhere. If the store loses
/// its data, closed periods are lost, too.
///
/// # Examples
///
/// ```
/// # use latchwork::once::OnceOutcome;
/// # use latchwork::Period;
/// # use latchwork::{Driver, LockManager};
/// # use latchwork::store::MemoryBackend;
/// # let driver = Driver::start().unwrap();
/// # let locks = LockManager::new(MemoryBackend::new(driver.io()), driver);
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let report = locks.once("report", Period::daily("Europe/Berlin")?);
/// let outcome = report.run(async |run| send_report(run.token()).await).await?;
/// assert!(matches!(outcome, OnceOutcome::Done(())));
/// let again = report.run(async |run| send_report(run.token()).await).await?;
/// assert!(matches!(again, OnceOutcome::Skipped(_)));
/// # async fn send_report(_: latchwork_store::FencingToken) -> Result<(), std::io::Error> { Ok(()) }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Debug, Clone)]
#[must_use = "a task does nothing until it is begun"]
pub struct Once {
    lock: Lock,
    every: Period,
}

/// The result of a try to begin the task.
#[derive(Debug)]
pub enum Begun {
    /// The task has begun on this caller.
    Run(Run),
    /// There is nothing to do: the task is done or running, or the store is in quarantine.
    Skipped(Skipped),
}

/// The result of running a task.
#[derive(Debug)]
pub enum OnceOutcome<T, E> {
    /// The work succeeded, and the period is closed.
    Done(T),
    /// The work succeeded, but the period is not closed, so another host may run it again. The lock
    /// was lost at the end, or the store did not answer.
    DoneNotClosed(T, NotClosed),
    /// The work failed, and the task is open for others.
    Failed(E),
    /// The lock was lost, and the work was dropped at its last await point.
    Lost(Lost),
    /// There was nothing to do: the task is done or running, or the store is in quarantine.
    Skipped(Skipped),
}

/// Why a period was not closed.
#[derive(Debug)]
#[non_exhaustive]
pub enum NotClosed {
    /// The lock was lost before the period was closed.
    Lost,
    /// The store did not answer, or refused. The release is repeated in the background until it is
    /// answered or the ttl ends.
    Error(Error),
}

impl<T, E: fmt::Display> fmt::Display for OnceOutcome<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done(_) => f.write_str("done"),
            Self::DoneNotClosed(_, why) => write!(f, "done, but the period is not closed: {why}"),
            Self::Failed(error) => write!(f, "failed: {error}"),
            Self::Lost(lost) => write!(f, "stopped: {lost}"),
            Self::Skipped(why) => why.fmt(f),
        }
    }
}

impl fmt::Display for NotClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost => f.write_str("the lock was lost before"),
            Self::Error(error) => error.fmt(f),
        }
    }
}

impl Once {
    pub(crate) fn new(lock: Lock, every: Period) -> Self {
        Self { lock: lock.stop_at_linger(), every }
    }

    /// Sets the ttl: how long the store keeps the task for a host without a renewal.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { lock: self.lock.ttl(ttl), ..self }
    }

    /// Sets the description of the holder that other clients and `latchwork show` display.
    pub fn holder(self, text: impl Into<Arc<str>>) -> Self {
        Self { lock: self.lock.holder(text), ..self }
    }

    /// Sets the maximum length of a run. When it elapses, the lock is lost even if the run goes on.
    pub fn max_hold(self, longest: Duration) -> Self {
        Self { lock: self.lock.max_hold(longest), ..self }
    }

    /// Sets how long the key stays closed after a run that ended without a release; see
    /// [`Lock::lock_delay`].
    pub fn lock_delay(self, delay: Duration) -> Self {
        Self { lock: self.lock.lock_delay(delay), ..self }
    }

    /// Begins the task unless it was done in this period or is running.
    ///
    /// Returns at once, except at the start of a period while the previous one is still closed.
    ///
    /// # Errors
    ///
    /// `Unsupported` on a store that cannot keep a key closed. `Mismatch` if the task is closed until
    /// a moment that is not about the end of the current period: it was run with another period, or
    /// on a host whose clock was wrong ([`reset`](Once::reset) opens it). Else as [`Lock::try_acquire`].
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::try_acquire`].
    pub async fn try_begin(&self) -> Result<Begun, Error> {
        self.begin_here(None).await
    }

    /// Begins the task unless it was done in this period. If it is running, waits up to `limit` for
    /// it to succeed or fail.
    ///
    /// # Errors
    ///
    /// `TimedOut` if it is still being done after `limit`; else as for [`try_begin`](Once::try_begin).
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`].
    pub async fn begin_within(&self, limit: Duration) -> Result<Begun, Error> {
        self.begin_here(Some(limit)).await
    }

    async fn begin_here(&self, limit: Option<Duration>) -> Result<Begun, Error> {
        let engine = self.lock.engine();
        let answer = engine.native(self.begin(limit)).await;
        engine.told(answer, self.lock.key().ok())
    }

    async fn begin(&self, limit: Option<Duration>) -> Result<Begun, Error> {
        let engine = self.lock.engine();
        let patience = limit
            .map_or(Patience::Once, |limit| Patience::Until(engine.io.now().plus(limit), limit));
        self.check_linger()?;
        loop {
            let mut why = match self.lock.admit(patience).await? {
                Admission::Granted(guard) => {
                    let period = self.every.around(engine.io.clock().wall())?;
                    return Ok(Begun::Run(Run { guard, period }));
                }
                Admission::Refused(blocked) => Skipped::because(blocked),
            };
            let Skipped::Done { closed_for, .. } = why else { return Ok(Begun::Skipped(why)) };
            let closed = match self.what_is_closed(closed_for)? {
                // A try may return when to retry instead, as a majority of stores does.
                Closed::Neither { .. } => {
                    let seen = self.look().await?;
                    let closed = self.what_is_closed(seen.as_ref().and_then(|seen| seen.linger))?;
                    why = why.learn(seen);
                    closed
                }
                closed => closed,
            };
            let pause = match closed {
                Closed::Ours => return Ok(Begun::Skipped(why)),
                Closed::Last(pause) => pause,
                Closed::Neither { left, ends_in } => {
                    return Err(self.other_period(&why, left, ends_in));
                }
            };
            tokio::select! {
                biased;
                () = engine.io.sleep(pause) => {}
                () = engine.closed() => {}
            }
        }
    }

    /// Which period a key is closed for, if it is closed for so long. One that closes ours lasts until
    /// its end; clocks that differ, and stores that count in seconds, let the last one reach a little
    /// into ours.
    fn what_is_closed(&self, left: Option<Duration>) -> Result<Closed, Error> {
        let now = self.lock.engine().io.clock().wall();
        let Range { start, end } = self.every.around(now)?;
        let reach = ((end - start) / 2).min(MOST_CLOCKS_DIFFER).saturating_sub(now - start);
        let slack = MOST_CLOCKS_DIFFER.max((end - start) / SLACK) + CLOSED_LONGER;
        let ends_in = end - now;
        Ok(match left {
            // Where the store is late, it is asked again in a while.
            Some(left) if left <= reach => Closed::Last(left.max(LOOK)),
            Some(left) if left.abs_diff(ends_in) > slack => Closed::Neither { left, ends_in },
            // One that does not tell is asked now and then.
            None if !reach.is_zero() => Closed::Last(reach.min(LOOK * 10)),
            _ => Closed::Ours,
        })
    }

    /// Refuses a store that cannot keep a key closed.
    fn check_linger(&self) -> Result<(), Error> {
        let capabilities = &self.lock.engine().capabilities;
        if capabilities.linger {
            return Ok(());
        }
        let message = "once: this store cannot keep a key closed after it was released";
        Err(Error::new(ErrorKind::Unsupported, message)
            .with_key(self.lock.key()?)
            .with_store(capabilities.store.clone())
            .with_next_step("use another store, or a plain lock if the task may run again"))
    }

    /// The key is closed until a moment that is the end of no period of ours.
    fn other_period(&self, why: &Skipped, left: Duration, ends_in: Duration) -> Error {
        let by = match why {
            Skipped::Done { by: Some(by), .. } => format!(" (by {by})"),
            _ => String::new(),
        };
        let message = format!(
            "once: the task is closed for another {}{by}, but its period ({}) ends in {}: it was \
             run with another period or time zone, or on a host whose clock was wrong",
            shown(left),
            self.every,
            shown(ends_in),
        );
        let error = Error::new(ErrorKind::Mismatch, message)
            .with_store(self.lock.engine().capabilities.store.clone())
            .with_next_step(if left > ends_in { TOO_LONG } else { ANOTHER });
        match self.lock.key() {
            Ok(key) => error.with_key(key),
            Err(_) => error,
        }
    }

    /// Runs the task unless it was done in this period or is running.
    ///
    /// `work` is given the run, with its token; `Ok` is success and closes the period.
    ///
    /// # Errors
    ///
    /// As [`try_begin`](Once::try_begin). Later failures are in the outcome.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` and opens the task for others.
    pub async fn run<T, E>(
        &self,
        work: impl AsyncFnOnce(&Run) -> Result<T, E>,
    ) -> Result<OnceOutcome<T, E>, Error> {
        let run = match self.try_begin().await? {
            Begun::Run(run) => run,
            Begun::Skipped(why) => return Ok(OnceOutcome::Skipped(why)),
        };
        Ok(match run.guard.run(work(&run)).await {
            Ok(result) => run.finish(result).await,
            Err(lost) => OnceOutcome::Lost(lost),
        })
    }
}

/// Which period a closed key belongs to.
enum Closed {
    /// The current one.
    Ours,
    /// The previous one, or it is not known: retry after this pause.
    Last(Duration),
    /// None of ours: it opens after `left`, and the current one ends in `ends_in`.
    Neither { left: Duration, ends_in: Duration },
}

/// A running task: a [`Guard`] with a period.
///
/// Dropping it counts as a failure: the task is open for others.
#[must_use = "dropping the run gives the task up"]
pub struct Run {
    guard: Guard,
    period: Range<Duration>,
}

impl Run {
    /// Returns the period in which the run started, in wall-clock time since 1970.
    pub fn period(&self) -> Range<Duration> {
        self.period.clone()
    }

    /// Closes the period, so that no host runs the task again before it ends.
    ///
    /// # Errors
    ///
    /// As [`Guard::release`]. With [`Lost`](ErrorKind::Lost) the period is not closed, and another
    /// host may have begun the task again.
    ///
    /// # Cancel safety
    ///
    /// As [`Guard::release`]: the period is closed in the background.
    pub async fn succeed(self) -> Result<(), Error> {
        let closed_until = self.closed_until();
        self.guard.release_until(closed_until).await
    }

    /// Closes the period, and asks again until the store answers or the lease is over; see
    /// [`Guard::release_until_answered`].
    ///
    /// # Errors
    ///
    /// As `release_until_answered`. With any error but [`Lost`](ErrorKind::Lost) the period may be closed or open.
    ///
    /// # Cancel safety
    ///
    /// As [`succeed`](Run::succeed).
    pub async fn succeed_until_answered(self, failed: impl FnMut(&Error)) -> Result<(), Error> {
        let closed_until = self.closed_until();
        self.guard.end_until_answered(closed_until, failed).await
    }

    /// Until when a success closes the task; `None` if the period is over.
    fn closed_until(&self) -> Option<Moment> {
        let (now, wall) = self.guard.clocks();
        closed_until(&self.period, now, wall)
    }

    /// The guard, without the period.
    pub(crate) fn into_guard(self) -> Guard {
        self.guard
    }

    /// Closes the period if the work succeeded, or opens the task for others if it failed.
    ///
    /// # Cancel safety
    ///
    /// As [`succeed`](Run::succeed).
    pub async fn finish<T, E>(self, result: Result<T, E>) -> OnceOutcome<T, E> {
        match result {
            Ok(done) => match self.succeed().await {
                Ok(()) => OnceOutcome::Done(done),
                Err(error) if error.kind() == ErrorKind::Lost => {
                    OnceOutcome::DoneNotClosed(done, NotClosed::Lost)
                }
                Err(error) => OnceOutcome::DoneNotClosed(done, NotClosed::Error(error)),
            },
            Err(failed) => {
                // Whether the store heard of it or not: it will be open by the ttl.
                let _ = self.fail().await;
                OnceOutcome::Failed(failed)
            }
        }
    }

    /// Opens the task for others, as after a failure.
    ///
    /// # Errors
    ///
    /// As [`Guard::release`].
    ///
    /// # Cancel safety
    ///
    /// As [`Guard::release`].
    pub async fn fail(self) -> Result<(), Error> {
        self.guard.release().await
    }

    /// Opens the task for others, and asks again until the store answers or the lease is over.
    ///
    /// # Errors
    ///
    /// As [`Guard::release_until_answered`].
    ///
    /// # Cancel safety
    ///
    /// As [`Guard::release`].
    pub async fn fail_until_answered(self, failed: impl FnMut(&Error)) -> Result<(), Error> {
        self.guard.release_until_answered(failed).await
    }
}

/// Until when a success at this moment closes a task; `None` if the period is over.
pub(crate) fn closed_until(
    period: &Range<Duration>,
    now: Moment,
    wall: Duration,
) -> Option<Moment> {
    let length = period.end.saturating_sub(period.start);
    // A clock that was set back makes the rest no longer than the period.
    let left = period.end.saturating_sub(wall).min(length);
    let longer = (length / 20).min(CLOSED_LONGER);
    (!left.is_zero()).then(|| now.plus(left + longer))
}

impl Deref for Run {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("guard", &self.guard).field("period", &self.period).finish()
    }
}
