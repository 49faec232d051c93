//! The command: started in a group of its own, watched, and waited for.

use std::cell::Cell;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use latchwork_store::Moment;
use latchwork_store::clock::boot_time;
use latchwork_wire::system::refusal_step;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, getpid, getppid,
    set_parent_process_death_signal, setpgid, waitid,
};
use rustix::termios::tcsetpgrp;

use super::frames::Frame;
use super::group::Group;
use super::guardian::Guardian;
use super::reaper;
use super::signals::{Mask, pipe_was_ignored};
use super::start::{self, Image};

/// What a command starts with.
pub(crate) struct Start<'a> {
    /// The program and its arguments; at least the program.
    pub(crate) words: &'a [OsString],
    /// What is added to its environment; `None` takes a variable away.
    pub(crate) environment: Vec<(&'static str, Option<OsString>)>,
    /// What ends it in latchwork's stead.
    pub(crate) guardian: &'a Guardian,
    /// The terminal that the command gets, if any.
    pub(crate) terminal: Option<BorrowedFd<'a>>,
    /// The signals that the command starts with blocked.
    pub(crate) mask: Mask,
    /// From here on it must not start any more.
    pub(crate) not_after: Moment,
}

/// The command's first process: the leader of its group. Not waited for until [`Child::reap`], so
/// that the group's number cannot become another's.
#[derive(Debug)]
pub(crate) struct Child {
    pid: Pid,
}

/// A change of the command's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// It ended with this code.
    Exited(i32),
    /// It was ended by the signal of this number.
    Killed(i32),
    /// It was stopped by the signal of this number.
    Stopped(i32),
    /// It was continued after a stop.
    Continued,
}

impl Child {
    /// Starts the command. Call it on the main thread only: the kernel kills the command when the
    /// *thread* that started it ends.
    ///
    /// # Errors
    ///
    /// What `exec` says; `Other` for what was refused before; `TimedOut` when `not_after` had come, and `ECHILD` when the guardian was dead.
    #[expect(unsafe_code, reason = "a process that does something of its own before the exec")]
    pub(crate) fn start(start: Start<'_>) -> io::Result<Self> {
        let image = Image::new(start.words, &start.environment)?;
        let parent = getpid();
        // What the system has refused to the process before it was the command's.
        let refused = Cell::new("");
        let prepare = || {
            refused.set("setpgid");
            setpgid(None, None)?;
            refused.set("prctl");
            set_parent_process_death_signal(Some(Signal::KILL))?;
            refused.set("");
            if getppid() != Some(parent) {
                // The parent died before it could be tied to this process.
                return Err(Errno::PIPE);
            }
            let own = getpid();
            // Told before the exec, so that the guardian knows every group that ever runs.
            let frame = Frame::Group(own.as_raw_nonzero().get()).encode();
            match rustix::io::write(start.guardian.frames(), &frame) {
                Ok(written) if written == frame.len() => {}
                Ok(_) => return Err(Errno::IO),
                Err(Errno::PIPE) => return Err(Errno::CHILD),
                Err(error) => return Err(error),
            }
            start.guardian.ready()?;
            if boot_time() >= start.not_after {
                return Err(Errno::TIMEDOUT);
            }
            if let Some(tty) = start.terminal {
                // The terminal may be gone; the command will see.
                let _ = tcsetpgrp(tty, own);
            }
            Ok(())
        };
        // SAFETY: it makes system calls only, and none of these functions panics.
        let started = unsafe { start::start(&image, &start.mask, pipe_was_ignored(), &prepare) };
        let pid = started.map_err(|error| match refused.get() {
            "" => error,
            call => io::Error::other(format!(
                "cannot prepare the command's process: {call}: {error}; {}",
                refusal_step(&error)
            )),
        })?;
        reaper::keep(pid);
        // No setpgid here: that returns after the exec, when the child has long done it.
        Ok(Self { pid })
    }

    /// The command's group.
    pub(crate) fn group(&self) -> Group {
        Group(self.pid)
    }

    /// Whether the command has ended. Leaves it to be reaped.
    pub(crate) fn ended(&self) -> io::Result<Option<Change>> {
        self.look(WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
    }

    /// Whether the command has been stopped or continued since the last look.
    pub(crate) fn stopped(&self) -> io::Result<Option<Change>> {
        self.look(WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED)
    }

    /// Waits for the end, and lets the kernel forget the command and its number.
    pub(crate) fn reap(self) {
        reaper::wait_for(self.pid);
    }

    fn look(&self, options: WaitIdOptions) -> io::Result<Option<Change>> {
        match waitid(WaitId::Pid(self.pid), options | WaitIdOptions::NOHANG) {
            Ok(status) => Ok(status.as_ref().and_then(change)),
            // Asked for stops only, the kernel says so of a command that has ended.
            Err(Errno::CHILD) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

fn change(status: &WaitIdStatus) -> Option<Change> {
    if let Some(code) = status.exit_status() {
        return Some(Change::Exited(code));
    }
    if let Some(signal) = status.terminating_signal() {
        return Some(Change::Killed(signal));
    }
    if status.continued() {
        return Some(Change::Continued);
    }
    status.stopping_signal().map(Change::Stopped)
}

/// A pair of descriptors closed on exec; the writing end does not block.
pub(crate) fn pipe() -> io::Result<(std::os::fd::OwnedFd, std::os::fd::OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(write.as_fd(), true)?;
    Ok((read, write))
}
