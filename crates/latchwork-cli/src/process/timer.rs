//! Sleeping on the boot clock, which runs on while the machine sleeps.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use latchwork_store::Moment;
use latchwork_store::clock::boot_time;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

/// A timerfd on the boot clock.
#[derive(Debug)]
pub(crate) struct BootTimer(OwnedFd);

impl BootTimer {
    /// A timer that is not set.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(timerfd_create(TimerfdClockId::Boottime, flags)?))
    }

    /// Makes the descriptor readable at `at`, at once if that is past; `NEVER` unsets it.
    pub(crate) fn set(&self, at: Moment) -> io::Result<()> {
        // All zero would unset it.
        let nanos = if at == Moment::NEVER { 0 } else { at.as_nanos().max(1) };
        let value = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec {
                tv_sec: (nanos / 1_000_000_000) as i64,
                tv_nsec: (nanos % 1_000_000_000) as i64,
            },
        };
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &value)?;
        Ok(())
    }
}

impl AsFd for BootTimer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for BootTimer {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A [`BootTimer`] to await on the runtime of the main thread.
#[derive(Debug)]
pub(crate) struct Naps(AsyncFd<BootTimer>);

impl Naps {
    /// Registers a timer with the current runtime.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(watch(BootTimer::new()?)?))
    }

    /// Completes when the boot clock has reached `at`. One sleeper at a time; may be dropped.
    pub(crate) async fn until(&self, at: Moment) -> io::Result<()> {
        loop {
            if boot_time() >= at {
                return Ok(());
            }
            self.0.get_ref().set(at)?;
            let mut ready = self.0.readable().await?;
            let mut count = [0; 8];
            if rustix::io::read(self.0.get_ref(), &mut count).is_err() {
                ready.clear_ready();
            }
        }
    }

    /// Completes after `length`.
    pub(crate) async fn nap(&self, length: Duration) -> io::Result<()> {
        self.until(boot_time().plus(length)).await
    }
}

/// Registers what owns a descriptor with the current runtime.
#[allow(
    deprecated,
    reason = "sound for types that keep their descriptor; the replacement is unsafe and newer than \
              the tokio asked for"
)]
pub(crate) fn watch<T: AsRawFd>(owner: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::new(owner)
}
