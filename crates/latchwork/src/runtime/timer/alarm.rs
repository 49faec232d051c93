//! Timer descriptors: one for sleeps, and one that the kernel cancels when the wall clock is set.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use latchwork_store::Moment;

const NEVER: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

pub(super) struct Alarm {
    boot: OwnedFd,
    /// None where the system cannot tell of steps.
    steps: Option<OwnedFd>,
}

impl Alarm {
    pub(super) fn new() -> std::io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let boot = timerfd_create(TimerfdClockId::Boottime, flags)?;
        // A filter of system calls may refuse this alone: no sleep would end.
        let spec = Itimerspec { it_interval: NEVER, it_value: NEVER };
        timerfd_settime(&boot, TimerfdTimerFlags::ABSTIME, &spec)?;
        let steps = timerfd_create(TimerfdClockId::Realtime, flags)?;
        let steps = arm(&steps).is_ok().then_some(steps);
        Ok(Self { boot, steps })
    }

    pub(super) fn set(&self, at: Moment) {
        // Zero would disarm the timer.
        let nanos = at.as_nanos().max(1);
        let at = Timespec {
            tv_sec: (nanos / 1_000_000_000) as _,
            tv_nsec: (nanos % 1_000_000_000) as _,
        };
        let spec = Itimerspec { it_interval: NEVER, it_value: at };
        // It was allowed before, and fails otherwise for a bad descriptor or time only.
        let _ = timerfd_settime(&self.boot, TimerfdTimerFlags::ABSTIME, &spec);
    }

    /// Whether [`wait`](Self::wait) tells of steps.
    pub(super) fn hears_steps(&self) -> bool {
        self.steps.is_some()
    }

    /// Blocks until the moment that was set has come, or the wall clock was set: then `true`.
    pub(super) fn wait(&self) -> bool {
        let own = PollFd::new(&self.boot, PollFlags::IN);
        let mut waits = [own.clone(), own];
        let mut count = 1;
        if let Some(steps) = &self.steps {
            waits[1] = PollFd::new(steps, PollFlags::IN);
            count = 2;
        }
        // The timers wake it. Interrupted, it looks at the clock for nothing.
        if poll(&mut waits[..count], None).is_err() {
            return false;
        }
        // The number read does not matter; reading makes a descriptor quiet again.
        let mut number = [0u8; 8];
        let _ = rustix::io::read(&self.boot, &mut number);
        let Some(steps) = self.steps.as_ref().filter(|_| !waits[1].revents().is_empty()) else {
            return false;
        };
        let _ = rustix::io::read(steps, &mut number);
        let _ = arm(steps);
        true
    }
}

/// Sets a timer that never goes off, but is cancelled when the wall clock is set.
fn arm(steps: &OwnedFd) -> rustix::io::Result<()> {
    let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
    let end_of_time = Timespec { tv_sec: i64::MAX, tv_nsec: 0 };
    let spec = Itimerspec { it_interval: NEVER, it_value: end_of_time };
    match timerfd_settime(steps, flags, &spec) {
        // Set in this moment once more; it is armed all the same, and who waits looks anyway.
        Ok(_) | Err(Errno::CANCELED) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_on_the_wall_clock_is_cancelled_by_steps() {
        use std::os::fd::AsRawFd;

        let alarm = Alarm::new().unwrap();
        let steps = alarm.steps.as_ref().expect("Linux tells of steps");
        let info = format!("/proc/self/fdinfo/{}", steps.as_raw_fd());
        let info = std::fs::read_to_string(info).unwrap();
        assert!(info.contains("clockid: 0"), "CLOCK_REALTIME: {info}");
        assert!(info.contains("settime flags: 03"), "absolute, cancelled by a step: {info}");
    }
}
