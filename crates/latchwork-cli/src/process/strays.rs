//! Processes of a command outside of its group: `timeout` makes a group of its own, as `su -c` and a shell with
//! job control do.
//!
//! They are found in /proc by their parents, for as long as these live, and by the id of the hold in their
//! environment. A process in another session whose parent has ended is a daemon, which is to stay.

use std::fs;
use std::time::Duration;

use latchwork_store::Moment;
use latchwork_store::clock::boot_time;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open, pidfd_send_signal,
};

use super::group::{Group, is_refused, numbers, proc_is_own, session_of};
use super::stat::StatLine;

/// How long a look may keep a SIGKILL waiting.
const GLANCE: Duration = Duration::from_millis(20);
/// And a SIGTERM: after that what was not found may never be, and a busy machine takes long to read /proc.
const SEARCH: Duration = Duration::from_secs(1);

/// The processes of a command that are not in its group, as far as they are known.
#[derive(Debug)]
pub(crate) struct Strays {
    /// The session that the command starts in.
    session: i32,
    /// What the environment of the command holds, and that of no other.
    mark: Option<String>,
    known: Vec<Process>,
    /// Those that were asked to end.
    asked: Vec<Process>,
}

#[derive(Debug, Clone, Copy)]
struct Process {
    pid: i32,
    parent: i32,
    group: i32,
    session: i32,
    /// With the number, this names a process for good.
    began: u64,
}

impl Strays {
    /// Of a command that this process, or the one that it was forked from, starts in its session.
    pub(crate) fn new(mark: Option<&str>) -> Self {
        let mark = mark.filter(|mark| !mark.is_empty()).map(str::to_owned);
        Self { session: session_of(0), mark, known: Vec::new(), asked: Vec::new() }
    }

    /// Looks for them by their parents. Call it before a SIGKILL, which ends parents.
    pub(crate) fn look_before_kill(&mut self, group: Option<Group>) {
        self.look_by_parents(group, GLANCE);
    }

    /// The same before a SIGTERM, in up to half of the time that is left until SIGKILL.
    pub(crate) fn look_before_term(&mut self, group: Group, kill_at: Moment) {
        let half = kill_at.since(boot_time()) / 2;
        self.look_by_parents(Some(group), SEARCH.min(half).max(GLANCE));
    }

    /// Looks for them by their parents alone, for so long at the most: what is known stays known. No process can hold
    /// it up, as it can a reader of its environment.
    fn look_by_parents(&mut self, group: Option<Group>, limit: Duration) {
        let before = std::mem::take(&mut self.known);
        let all = processes(boot_time().plus(limit));
        let is_root = |it: &Process| before.iter().any(|known| known.is(it));
        self.known = outside(all, group, is_root);
        for it in before {
            if !self.known.iter().any(|known| known.is(&it)) {
                self.known.push(it);
            }
        }
    }

    /// Looks for them. `None` is a group that was seen empty: its number may be another's. Returns whether there
    /// are any.
    pub(crate) fn look(&mut self, group: Option<Group>) -> bool {
        let is_root =
            |it: &Process| self.known.iter().any(|known| known.is(it)) || self.is_marked(it);
        self.known = outside(processes(Moment::NEVER), group, is_root);
        !self.known.is_empty()
    }

    fn is_marked(&self, it: &Process) -> bool {
        let Some(mark) = &self.mark else { return false };
        it.session == self.session
            && fs::read(format!("/proc/{}/environ", it.pid)).is_ok_and(|environment| {
                environment.windows(mark.len()).any(|part| part == mark.as_bytes())
            })
    }

    /// Forgets what has become a daemon since it was found, and whom was asked. Call it at the first look for a
    /// further signal.
    pub(crate) fn begin_again(&mut self) {
        let session = self.session;
        let stays = |it: &Process| {
            it.session == session
                || Process::of(it.pid).is_some_and(|now| now.is(it) && now.parent == it.parent)
        };
        self.known.retain(stays);
        self.asked.clear();
    }

    /// Asks those to end, each once, whose parent is none of them: a parent passes the signal on, as `timeout` does,
    /// so that a child that was seen with its parent counts as asked.
    pub(crate) fn ask(&mut self) {
        let has_parent = |it: &Process| self.known.iter().any(|other| other.pid == it.parent);
        let is_asked = |it: &Process| self.asked.iter().any(|asked| asked.is(it));
        let new = self.known.iter().filter(|it| !has_parent(it) && !is_asked(it));
        for it in new {
            it.signal(Signal::TERM);
            it.signal(Signal::CONT);
        }
        let fresh = self.known.iter().filter(|it| !is_asked(it)).copied().collect::<Vec<_>>();
        self.asked.extend(fresh);
    }

    /// Whether one of them runs that this user may not signal.
    pub(crate) fn is_out_of_reach(&self) -> bool {
        let runs = |it: &&Process| Process::of(it.pid).is_some_and(|now| now.is(it));
        self.known.iter().filter(runs).any(|it| is_refused(it.pid))
    }

    /// Kills those that were found. Returns whether there were any that this user may kill.
    pub(crate) fn kill(&self) -> bool {
        self.known.iter().filter(|it| it.signal(Signal::KILL)).count() > 0
    }
}

/// What is outside of the group and descends from it, or from a root.
fn outside(
    all: Vec<Process>,
    group: Option<Group>,
    is_root: impl Fn(&Process) -> bool,
) -> Vec<Process> {
    let group = group.map(|group| group.0.as_raw_nonzero().get());
    let is_member = |it: &Process| Some(it.group) == group;
    let mut is_found: Vec<bool> = all.iter().map(|it| is_member(it) || is_root(it)).collect();
    loop {
        let found = all.iter().zip(&is_found).filter(|(_, found)| **found);
        let parents: Vec<i32> = found.map(|(it, _)| it.pid).collect();
        let mut grows = false;
        for (it, found) in all.iter().zip(&mut is_found) {
            let is_new = !*found && parents.contains(&it.parent);
            *found |= is_new;
            grows |= is_new;
        }
        if !grows {
            break;
        }
    }
    let found = all.into_iter().zip(is_found).filter(|&(_, found)| found);
    found.map(|(it, _)| it).filter(|it| !is_member(it) && !it.is_helper()).collect()
}

impl Process {
    fn of(pid: i32) -> Option<Self> {
        let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let line = StatLine::of(&line)?;
        let ends = matches!(line.field(3)?, "Z" | "X" | "x") && line.number::<u32>(20)? <= 1;
        let (parent, group) = (line.number(4)?, line.number(5)?);
        let (session, began) = (line.number(6)?, line.number(22)?);
        (!ends).then_some(Self { pid, parent, group, session, began })
    }

    fn is(&self, other: &Self) -> bool {
        (self.pid, self.began) == (other.pid, other.began)
    }

    /// Whether it is the guardian of a command inside, or the keeper of a shell inside. They do not do the
    /// command's work, and end by themselves when they have ended what does.
    fn is_helper(&self) -> bool {
        let program = |pid: &str| fs::read_link(format!("/proc/{pid}/exe")).ok();
        self.session == self.pid
            && program(&self.pid.to_string()).is_some_and(|its| Some(its) == program("self"))
    }

    /// Signals this process, and no later one of its number. Returns whether it got the signal.
    fn signal(&self, signal: Signal) -> bool {
        let Some(pid) = Pid::from_raw(self.pid) else { return false };
        let handle = pidfd_open(pid, PidfdFlags::empty());
        if !Self::of(self.pid).is_some_and(|now| now.is(self)) {
            return false;
        }
        match handle {
            Ok(handle) => pidfd_send_signal(handle, signal).is_ok(),
            Err(Errno::SRCH) => false,
            // Before Linux 5.3, and where no descriptor can be opened.
            Err(_) => kill_process(pid, signal).is_ok(),
        }
    }
}

/// All that run, but for this one: none where /proc is another namespace's, and those that were found until a
/// moment. The newest come first, because a command and its processes are among them.
fn processes(until: Moment) -> Vec<Process> {
    if !proc_is_own() {
        return Vec::new();
    }
    let own = getpid().as_raw_nonzero().get();
    let mut others: Vec<i32> = numbers().filter(|&pid| pid != own).collect();
    others.sort_unstable_by_key(|&pid| std::cmp::Reverse(pid));
    others.into_iter().take_while(|_| boot_time() < until).filter_map(Process::of).collect()
}
