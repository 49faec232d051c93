//! The process that a hold belongs to.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::process::stat::StatLine;

/// A process, by a descriptor that no other process can get.
#[derive(Debug)]
pub(crate) struct Shell {
    pid: Pid,
    fd: OwnedFd,
}

impl Shell {
    /// The process of this number.
    pub(crate) fn of(pid: Pid) -> io::Result<Self> {
        Ok(Self { pid, fd: pidfd_open(pid, PidfdFlags::NONBLOCK)? })
    }

    /// The process that runs `child`, which must not end meanwhile: while it lives and has the same parent,
    /// the number of that parent belongs to nobody else.
    pub(super) fn that_runs(child: Pid) -> io::Result<Self> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let parent = parent(child).ok_or_else(missing)?;
        let found = Self::of(parent)?;
        if self::parent(child) == Some(parent) { Ok(found) } else { Err(missing()) }
    }

    /// Whether both are the same process.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.pid == other.pid
    }

    /// A descriptor that becomes readable when the process ends.
    pub(crate) fn end(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    /// Sends it a signal; one that has ended needs none.
    pub(super) fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.fd, signal);
    }
}

fn parent(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    Pid::from_raw(StatLine::of(&stat)?.number(4)?)
}

#[cfg(test)]
mod tests {
    use rustix::process::{getpid, getppid};

    use super::*;

    #[test]
    fn the_process_that_runs_another_is_its_parent() {
        let mine = Shell::that_runs(getpid()).unwrap();
        assert!(mine.is(&Shell::of(getppid().unwrap()).unwrap()));
        assert!(!mine.is(&Shell::of(getpid()).unwrap()));
    }
}
