//! Sleeps on the boot clock, for any runtime, and notices when the wall clock is set.
//!
//! One `timerfd` on `CLOCK_BOOTTIME` serves all sleeps of a driver: it goes off right after a
//! resume, where tokio's timers would still wait out the time that the machine slept. A caller that
//! asks for an earlier end than the one set moves the timer itself, so no thread is woken for it. A
//! second one, on the wall clock, is cancelled by the kernel when that is set.
//!
//! The thread that waits for both does nothing else: no I/O of a store and no code of a user delays
//! the end of a sleep. Where there is no `timerfd` it naps for at most 500 ms at a time.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use latchwork_store::{
    Clock, Moment, Origin, Sleep,
    clock::{LONGEST_NAP, Steps, boot_time, wall_time},
};

#[cfg(target_os = "linux")]
mod alarm;
#[cfg(not(target_os = "linux"))]
#[path = "timer/nap.rs"]
mod alarm;

/// The real clock, with its sleeps served by a driver.
#[derive(Debug)]
pub(crate) struct SystemClock(Arc<Timers>);

impl SystemClock {
    pub(crate) fn new(timers: Arc<Timers>) -> Self {
        Self(timers)
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        boot_time()
    }

    fn wall(&self) -> Duration {
        wall_time()
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        Box::pin(TimerSleep { timers: self.0.clone(), at, entry: None })
    }

    fn stepped(&self) -> Sleep {
        if self.0.alarm.hears_steps() {
            return self.0.steps.next();
        }
        self.sleep_until(self.now().plus(LONGEST_NAP))
    }
}

/// All sleeps of one driver.
pub(crate) struct Timers {
    table: Mutex<Table>,
    alarm: alarm::Alarm,
    steps: Arc<Steps>,
    origin: Origin,
}

struct Table {
    sleepers: BTreeMap<(Moment, u64), Waker>,
    entries: u64,
    /// What the alarm is set to. It may be earlier than every sleeper: verbs have time limits that
    /// are hardly ever needed, and an idle wake-up now and then is cheaper than a system call for
    /// each.
    alarm_at: Moment,
    stopped: bool,
}

impl std::fmt::Debug for Timers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Timers").field("sleepers", &self.lock().sleepers.len()).finish()
    }
}

impl Timers {
    pub(crate) fn new() -> std::io::Result<Arc<Self>> {
        let table = Table {
            sleepers: BTreeMap::new(),
            entries: 0,
            alarm_at: Moment::NEVER,
            stopped: false,
        };
        let (table, alarm) = (Mutex::new(table), alarm::Alarm::new()?);
        Ok(Arc::new(Self { table, alarm, steps: Arc::default(), origin: Origin::here() }))
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes sleepers when their time has come, until [`stop`](Self::stop). Blocks; it has a thread
    /// of its own.
    pub(crate) fn run(&self) {
        loop {
            let due = {
                let mut table = self.lock();
                if table.stopped {
                    return;
                }
                let now = boot_time();
                let later = table.sleepers.split_off(&(now, u64::MAX));
                let due = std::mem::replace(&mut table.sleepers, later);
                table.alarm_at =
                    table.sleepers.first_key_value().map_or(Moment::NEVER, |((next, _), _)| *next);
                if table.alarm_at != Moment::NEVER {
                    self.alarm.set(table.alarm_at);
                }
                due
            };
            for waker in due.into_values() {
                // A foreign waker that panics must not end everybody's sleep for ever.
                let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
            }
            if self.alarm.wait() {
                let _ = catch_unwind(AssertUnwindSafe(|| self.steps.tell()));
            }
        }
    }

    /// Ends the thread that runs this. Sleeps that are under way, or begin later, do not end.
    pub(crate) fn stop(&self) {
        let mut table = self.lock();
        table.stopped = true;
        // Nobody moves the alarm from here on: no sleep ends earlier.
        table.alarm_at = Moment::from_nanos(0);
        self.alarm.set(table.alarm_at);
    }
}

struct TimerSleep {
    timers: Arc<Timers>,
    at: Moment,
    entry: Option<u64>,
}

impl Future for TimerSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        // In a child nobody wakes the sleeper, and the table may be locked for ever.
        if boot_time() >= this.at || !this.timers.origin.is_here() {
            return Poll::Ready(());
        }
        if this.at == Moment::NEVER {
            return Poll::Pending;
        }
        let mut table = this.timers.lock();
        let entry = *this.entry.get_or_insert_with(|| {
            table.entries += 1;
            table.entries
        });
        let key = (this.at, entry);
        let old = table.sleepers.insert(key, cx.waker().clone());
        if this.at < table.alarm_at {
            table.alarm_at = this.at;
            this.timers.alarm.set(this.at);
        }
        // A waker may do anything when it is dropped: not under the lock.
        drop(table);
        drop(old);
        Poll::Pending
    }
}

impl Drop for TimerSleep {
    fn drop(&mut self) {
        if let Some(entry) = self.entry
            && self.timers.origin.is_here()
        {
            // The alarm may stay set for it.
            let old = self.timers.lock().sleepers.remove(&(self.at, entry));
            drop(old);
        }
    }
}
