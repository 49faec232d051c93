//! Sleeps on the boot clock, for any runtime.
//!
//! One `timerfd` on `CLOCK_BOOTTIME` serves all sleeps of a driver: it goes off right after a
//! resume, where tokio's timers would still wait out the time that the machine slept. Whoever asks
//! for an earlier end than the one set moves the timer itself, so no thread is woken for it.
//! Where there is no `timerfd` the driver naps for at most 500 ms at a time.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::clock::{Clock, Moment, Sleep, boot_time, wall_time};
use crate::fork::Origin;

pub(crate) use alarm::Rings;

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
}

/// All sleeps of one driver.
pub(crate) struct Timers {
    table: Mutex<Table>,
    alarm: alarm::Alarm,
    origin: Origin,
}

struct Table {
    sleepers: BTreeMap<(Moment, u64), Waker>,
    entries: u64,
    /// What the alarm is set to. It may be earlier than every sleeper: verbs have time limits that
    /// are hardly ever needed, and an idle wake-up now and then is cheaper than a system call for
    /// each.
    alarm_at: Moment,
}

impl std::fmt::Debug for Timers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Timers").field("sleepers", &self.lock().sleepers.len()).finish()
    }
}

impl Timers {
    pub(crate) fn new() -> std::io::Result<Self> {
        let table = Table { sleepers: BTreeMap::new(), entries: 0, alarm_at: Moment::NEVER };
        let (table, alarm) = (Mutex::new(table), alarm::Alarm::new()?);
        Ok(Self { table, alarm, origin: Origin::here() })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the alarm with the runtime that this is called in.
    pub(crate) fn listen(&self) -> std::io::Result<Rings> {
        self.alarm.listen()
    }

    /// Wakes sleepers when their time has come. Runs on the driver, inside its runtime.
    pub(crate) async fn run(self: Arc<Self>, mut rings: Rings) -> std::io::Result<()> {
        loop {
            let due = {
                let mut table = self.lock();
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
            rings.next(&self.alarm).await?;
        }
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

#[cfg(target_os = "linux")]
mod alarm {
    use std::os::fd::OwnedFd;
    use std::sync::Arc;

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    use crate::clock::Moment;

    /// A timer descriptor on the boot clock.
    pub(super) struct Alarm(Arc<OwnedFd>);

    pub(crate) struct Rings(AsyncFd<Arc<OwnedFd>>);

    impl Alarm {
        pub(super) fn new() -> std::io::Result<Self> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            Ok(Self(Arc::new(timerfd_create(TimerfdClockId::Boottime, flags)?)))
        }

        pub(super) fn set(&self, at: Moment) {
            // Zero would disarm the timer.
            let nanos = at.as_nanos().max(1);
            let at = Timespec {
                tv_sec: (nanos / 1_000_000_000) as _,
                tv_nsec: (nanos % 1_000_000_000) as _,
            };
            let never = Timespec { tv_sec: 0, tv_nsec: 0 };
            let spec = Itimerspec { it_interval: never, it_value: at };
            // It fails for a bad descriptor or time only, and we have neither.
            let _ = timerfd_settime(&*self.0, TimerfdTimerFlags::ABSTIME, &spec);
        }

        pub(super) fn listen(&self) -> std::io::Result<Rings> {
            #[expect(unsafe_code, reason = "tokio has no safe way to register a descriptor")]
            // SAFETY: the descriptor is owned, behind an `Arc` that this `AsyncFd` keeps, so it
            // stays open and the same for as long as the `AsyncFd` lives.
            let ready =
                unsafe { AsyncFd::register_with_interest(self.0.clone(), Interest::READABLE)? };
            Ok(Rings(ready))
        }
    }

    impl Rings {
        pub(super) async fn next(&mut self, _: &Alarm) -> std::io::Result<()> {
            let mut ready = self.0.readable().await?;
            let mut count = [0u8; 8];
            // The count does not matter; reading it makes the descriptor quiet again.
            let _ = rustix::io::read(ready.get_inner(), &mut count);
            ready.clear_ready();
            Ok(())
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod alarm {
    #![expect(clippy::disallowed_methods, reason = "the nap behind the boot clock's sleeps")]

    use std::time::Duration;

    use tokio::sync::Notify;

    use crate::clock::{Moment, boot_time};

    const LONGEST_NAP: Duration = Duration::from_millis(500);

    /// Naps that look at the boot clock in between.
    pub(super) struct Alarm {
        next: std::sync::Mutex<Moment>,
        moved: Notify,
    }

    pub(crate) struct Rings;

    impl Alarm {
        pub(super) fn new() -> std::io::Result<Self> {
            Ok(Self { next: std::sync::Mutex::new(Moment::NEVER), moved: Notify::new() })
        }

        pub(super) fn set(&self, at: Moment) {
            *self.next.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = at;
            self.moved.notify_one();
        }

        pub(super) fn listen(&self) -> std::io::Result<Rings> {
            Ok(Rings)
        }
    }

    impl Rings {
        pub(super) async fn next(&mut self, alarm: &Alarm) -> std::io::Result<()> {
            let next = *alarm.next.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let nap = next.since(boot_time()).min(LONGEST_NAP);
            tokio::select! {
                () = tokio::time::sleep(nap) => {}
                () = alarm.moved.notified() => {}
            }
            Ok(())
        }
    }
}
