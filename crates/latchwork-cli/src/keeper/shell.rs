//! The shell that a hold belongs to.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal};

use crate::process::stat::StatLine;

/// A process, by a descriptor that no other process can get.
#[derive(Debug)]
pub(crate) struct Shell {
    fd: OwnedFd,
}

impl Shell {
    /// The process of this number, or the shell that runs this command.
    pub(crate) fn find(pid: Option<Pid>) -> io::Result<Self> {
        let pid = match pid {
            Some(pid) => pid,
            None => around()?,
        };
        Ok(Self { fd: pidfd_open(pid, PidfdFlags::NONBLOCK)? })
    }

    /// A descriptor that becomes readable when the process ends.
    pub(crate) fn end(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    /// Sends it a signal; one that has ended needs none.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.fd, signal);
    }
}

/// The shell around this process.
///
/// For `$(...)` some shells fork a copy of themselves, which runs the command and ends right after it. Such
/// a copy has executed nothing since, so its stack begins where that of the shell does.
fn around() -> io::Result<Pid> {
    let mut shell = getppid().ok_or(io::ErrorKind::NotFound)?;
    while let Some((parent, stack)) = parent_and_stack(shell)
        && let Some((_, stack_of_parent)) = parent_and_stack(parent)
        && stack != 0
        && stack == stack_of_parent
    {
        shell = parent;
    }
    Ok(shell)
}

/// The parent of a process, and the address at which its stack begins; 0 if this user may not know it.
fn parent_and_stack(pid: Pid) -> Option<(Pid, u64)> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let stat = StatLine::of(&stat)?;
    Some((Pid::from_raw(stat.number(4)?)?, stat.number(28)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_known_and_where_the_stack_begins() {
        let (parent, stack) = parent_and_stack(rustix::process::getpid()).unwrap();
        assert_eq!(Some(parent), getppid());
        assert!(stack > 0);
    }
}
