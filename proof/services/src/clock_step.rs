//! How a process learns that the wall clock was set, and how a test makes it believe so.
//!
//! The kernel cancels timers on the wall clock that ask for it when the clock is set, which makes
//! their descriptors readable. No test may set this machine's clock, so this rings the same
//! descriptors by hand: with a [`ServerClock`](crate::ServerClock) shifted before, the process sees
//! what it would see after a real step.

use std::fs;
use std::os::fd::RawFd;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};

use crate::{Error, Result};

/// `TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET`, as fdinfo shows it.
const CANCELLED_BY_STEPS: &str = "settime flags: 03";
/// `CLOCK_REALTIME`.
const WALL: &str = "clockid: 0";

/// The descriptors by which the kernel wakes a process when the wall clock is set.
///
/// # Errors
///
/// If the process is gone.
pub fn step_timers(pid: u32) -> Result<Vec<RawFd>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        let entry = entry?;
        // Closed meanwhile.
        let Ok(info) = fs::read_to_string(entry.path()) else { continue };
        let has = |line: &str| info.lines().any(|seen| seen == line);
        if has(WALL) && has(CANCELLED_BY_STEPS) {
            found.extend(entry.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok()));
        }
    }
    Ok(found)
}

/// Wakes a process as a step of the wall clock does; says how many descriptors rang.
///
/// The process must be a child of this one, or this one privileged.
///
/// # Errors
///
/// If the process is gone, or the system refuses.
pub fn ring_for_step(pid: u32) -> Result<usize> {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let number = number.ok_or_else(|| Error::while_("ring for a step", "no such process"))?;
    let process = pidfd_open(number, PidfdFlags::empty()).map_err(std::io::Error::from)?;
    let timers = step_timers(pid)?;
    for &timer in &timers {
        let timer =
            pidfd_getfd(&process, timer, PidfdGetfdFlags::empty()).map_err(std::io::Error::from)?;
        let soon = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec { tv_sec: 0, tv_nsec: 1 },
        };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &soon).map_err(std::io::Error::from)?;
    }
    Ok(timers.len())
}
