//! The process that a hold belongs to.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal};

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

    /// This process, if it runs `child`, which must not end meanwhile: while that lives and has this parent,
    /// the number of the parent belongs to nobody else. A shell that has ended is not taken for the process
    /// that got its children.
    pub(super) fn that_runs(child: Pid, shell: Pid) -> io::Result<Self> {
        let found = Self::of(shell)?;
        match parent(child) {
            Some(pid) if pid == shell => Ok(found),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Whether this process runs `child`.
    pub(super) fn runs(&self, child: Pid) -> bool {
        parent(child).is_some_and(|pid| self.is(pid))
    }

    /// Whether this is the process of this number.
    pub(super) fn is(&self, pid: Pid) -> bool {
        self.pid == pid && !self.has_ended()
    }

    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    fn has_ended(&self) -> bool {
        let mut end = [PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::IN)];
        !matches!(poll(&mut end, Some(&Timespec::default())), Ok(0))
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

/// The process that runs this one, if it is `shell` or was started by it: a subshell of it, for example.
///
/// `None` if that process has ended and left this one to another.
pub(crate) fn runner_under(shell: Pid) -> Option<Pid> {
    let runner = getppid()?;
    let mut above = Some(runner);
    while let Some(pid) = above {
        if pid == shell {
            return Some(runner);
        }
        above = parent(pid);
    }
    None
}

/// The shell or script that a hold is for, for people: `pid 812, bash ./deploy.sh`. Without `--pid` it is the one that
/// runs this process; the copy that a shell makes of itself for `$(...)` counts as that shell.
pub(crate) fn caller(named: Option<Pid>) -> String {
    let Some(pid) = named.or_else(original) else {
        return "a process that has ended".to_owned();
    };
    let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    let words = String::from_utf8_lossy(&line).trim_end_matches('\0').replace('\0', " ");
    format!("pid {pid}, {words}")
}

/// The process that runs this one; for a copy that a shell has made of itself, that shell.
fn original() -> Option<Pid> {
    let mut pid = getppid()?;
    while let Some(original) = parent(pid).filter(|_| is_copy(pid)) {
        pid = original;
    }
    Some(pid)
}

/// Whether a hold is for the first process of a PID namespace, whose end ends all other processes there: a script of
/// a container without an init.
pub(crate) fn is_for_the_first(named: Option<Pid>) -> bool {
    let program = |pid: Pid| fs::read_link(format!("/proc/{}/exe", pid.as_raw_nonzero())).ok();
    let Some(pid) = named.or_else(original).filter(|pid| pid.is_init()) else { return false };
    // A copy whose shell has ended is a child of the first process, which is another program.
    let runner = getppid().filter(|_| named.is_none()).unwrap_or(pid);
    runner == pid || program(runner).is_some_and(|its| Some(its) == program(pid))
}

/// Whether this process has run no program since it was forked (`PF_FORKNOEXEC`).
fn is_copy(pid: Pid) -> bool {
    const FORKNOEXEC: u64 = 0x40;
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    let flags = stat.ok().and_then(|stat| StatLine::of(&stat)?.number(9));
    flags.is_some_and(|flags: u64| flags & FORKNOEXEC != 0)
}

fn parent(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    Pid::from_raw(StatLine::of(&stat)?.number(4)?)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::getpid;

    use super::*;

    #[test]
    fn the_shell_is_the_parent_of_attach() {
        let (mine, parent) = (getpid(), getppid().unwrap());
        let shell = Shell::that_runs(mine, parent).unwrap();
        assert!(shell.is(parent) && shell.runs(mine) && !shell.is(mine) && !shell.runs(parent));
        // The process that got the children of one that has ended.
        assert!(Shell::that_runs(mine, mine).is_err());
        assert!(Shell::that_runs(mine, super::parent(parent).unwrap()).is_err());
        assert_eq!(runner_under(parent), Some(parent));
        assert_eq!(runner_under(super::parent(parent).unwrap()), Some(parent));
        assert_eq!(runner_under(mine), None);
    }

    #[test]
    fn an_ended_process_is_not_found() {
        let mut child = Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let shell = Shell::of(pid).unwrap();
        child.wait().unwrap();
        assert!(!shell.is(pid));
    }
}
