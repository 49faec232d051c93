//! A process group: signal it, and know when nobody in it runs any more.

use std::fs;
use std::io;

use std::time::Duration;

use latchwork_store::Moment;
use latchwork_store::clock::boot_time;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, getpid, getppid, kill_process_group, test_kill_process, test_kill_process_group,
};

use super::stat::StatLine;

/// How long after SIGKILL a group that cannot be looked into counts as one that runs.
const DYING: Duration = Duration::from_secs(1);

/// The process group of a command.
///
/// The number stays the group's own for as long as its leader is not waited for, or any member
/// lives; a caller that signals it must know that one of the two is so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Group(pub(crate) Pid);

impl Group {
    /// Sends `signal` to every member. A group without members is no error.
    pub(crate) fn signal(self, signal: Signal) -> io::Result<()> {
        match kill_process_group(self.0, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether no member runs any more; a zombie that nobody waits for does not run.
    ///
    /// Where /proc shows none of them (they are another user's and hidden, or it is the /proc of
    /// another pid namespace), believe the kernel: there are some, if only zombies.
    pub(crate) fn is_empty(self) -> bool {
        if test_kill_process_group(self.0) == Err(Errno::SRCH) {
            return true;
        }
        matches!(members(self.0), Some(found) if found.seen && !found.alive) && proc_is_own()
    }

    /// Whether no member still runs of a group that gets SIGKILL since `killed`. Only /proc
    /// distinguishes zombies that nobody waits for from others; without it, time decides.
    pub(crate) fn is_dead(self, killed: Moment) -> bool {
        self.is_empty() || (boot_time() >= killed.plus(DYING) && !proc_is_own())
    }

    /// Whether somebody other than `pid` runs in the group.
    pub(crate) fn has_others_than(self, pid: Pid) -> bool {
        numbers()
            .filter(|&other| other != pid.as_raw_nonzero().get())
            .filter_map(stat_of)
            .any(|stat| stat.group == self.0.as_raw_nonzero().get() && stat.alive)
    }

    /// Whether somebody runs in the group that this user may not signal.
    pub(crate) fn is_out_of_reach(self) -> bool {
        numbers()
            .filter(|&pid| is_refused(pid))
            .filter_map(stat_of)
            .any(|stat| stat.group == self.0.as_raw_nonzero().get() && stat.alive)
    }

    /// Whether this, a group of the caller's session, is orphaned: no member has a parent in the
    /// session but outside of the group, who could continue it. The kernel does not stop the
    /// members of such a group for their terminal.
    pub(crate) fn is_orphaned(self) -> bool {
        let session = session_of(0);
        if session == 0 {
            // Led from outside of the pid namespace, where the parents may be as well.
            return false;
        }
        let own = self.0.as_raw_nonzero().get();
        let outside =
            |parent: i32| parent > 0 && session_of(parent) == session && group_of(parent) != own;
        if outside(getppid().map_or(0, |parent| parent.as_raw_nonzero().get())) {
            return false;
        }
        !numbers()
            .filter_map(stat_of)
            .any(|stat| stat.group == own && stat.alive && outside(stat.parent))
    }
}

/// Whether this user may not signal a process.
pub(super) fn is_refused(pid: i32) -> bool {
    Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid) == Err(Errno::PERM))
}

/// Whether /proc shows the processes of this process's own pid namespace under the numbers that
/// they have in it. Somebody may have mounted another namespace's, or entered a new one under it.
pub(super) fn proc_is_own() -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|status| numbers_match(&status, getpid()))
}

fn numbers_match(status: &str, own: Pid) -> bool {
    let own = own.as_raw_nonzero().to_string();
    let field = |name| status.lines().find_map(|line: &str| line.strip_prefix(name));
    // One number for each namespace, from that of /proc down to the process's own. Kernels without
    // such namespaces do not have the line.
    match field("NSpid:").or_else(|| field("Pid:")) {
        Some(numbers) => numbers.split_ascii_whitespace().eq([own.as_str()]),
        None => false,
    }
}

/// The session of a process (0: of the caller); 0 if it is led from outside of the namespace, which
/// the safe functions do not expect.
#[expect(unsafe_code, reason = "rustix asserts that it is not 0")]
pub(super) fn session_of(pid: i32) -> i32 {
    // SAFETY: a system call without pointers.
    unsafe { libc::getsid(pid) }
}

/// The group of a process; 0 as in [`session_of`].
#[expect(unsafe_code, reason = "rustix asserts that it is not 0")]
fn group_of(pid: i32) -> i32 {
    // SAFETY: a system call without pointers.
    unsafe { libc::getpgid(pid) }
}

/// The children of this process that have ended and that nobody has waited for, as /proc shows them.
pub(super) fn ended_children() -> Vec<Pid> {
    let own = getpid().as_raw_nonzero().get();
    let is_ended = |pid| stat_of(pid).is_some_and(|stat| stat.parent == own && !stat.alive);
    numbers().filter(|&pid| is_ended(pid)).filter_map(Pid::from_raw).collect()
}

/// The numbers of all processes that /proc shows; none where there is no /proc.
pub(super) fn numbers() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

struct Members {
    seen: bool,
    alive: bool,
}

/// Looks through /proc for members of the group; `None` where there is no /proc.
fn members(group: Pid) -> Option<Members> {
    let group = group.as_raw_nonzero().get();
    let mut found = Members { seen: false, alive: false };
    for entry in fs::read_dir("/proc").ok()? {
        let Some(pid) = entry.ok().and_then(|e| e.file_name().to_str()?.parse().ok()) else {
            continue;
        };
        if let Some(stat) = stat_of(pid)
            && stat.group == group
        {
            found.seen = true;
            found.alive |= stat.alive;
            if found.alive {
                break;
            }
        }
    }
    Some(found)
}

struct Stat {
    parent: i32,
    group: i32,
    alive: bool,
}

fn stat_of(pid: i32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_stat(line: &str) -> Option<Stat> {
    let line = StatLine::of(line)?;
    let state = line.field(3)?;
    let (parent, group, threads): (i32, i32, u32) =
        (line.number(4)?, line.number(5)?, line.number(20)?);
    // A leader that has ended shows as a zombie while its other threads still run.
    let alive = !matches!(state, "Z" | "X" | "x") || threads > 1;
    Some(Stat { parent, group, alive })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(state: &str, threads: u32) -> String {
        format!("41 (a) b (c) {state} 1 77 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 99 0 0")
    }

    #[test]
    fn reads_the_group_behind_a_hostile_name() {
        let stat = parse_stat(&line("S", 1)).unwrap();
        assert_eq!((stat.parent, stat.group), (1, 77));
        assert!(stat.alive);
    }

    #[test]
    fn a_zombie_without_threads_counts_as_ended() {
        assert!(!parse_stat(&line("Z", 1)).unwrap().alive);
        assert!(parse_stat(&line("Z", 2)).unwrap().alive);
    }

    #[test]
    fn a_foreign_proc_is_not_trusted() {
        let own = Pid::from_raw(7).unwrap();
        assert!(numbers_match("Name:\tx\nPid:\t7\nNSpid:\t7\n", own));
        assert!(numbers_match("Name:\tx\nPid:\t7\n", own));
        // Seen from outside, once under the same number by chance.
        assert!(!numbers_match("Name:\tx\nPid:\t4711\nNSpid:\t4711\t7\n", own));
        assert!(!numbers_match("Name:\tx\nPid:\t7\nNSpid:\t7\t7\n", own));
        assert!(!numbers_match("Name:\tx\nPid:\t8\n", own));
        assert!(!numbers_match("", own));
        assert!(proc_is_own());
    }

    #[test]
    fn own_group_is_not_empty() {
        let own = Group(rustix::process::getpgrp());
        assert!(!own.is_empty() && !own.is_out_of_reach());
    }
}
