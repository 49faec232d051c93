//! The guardian itself: a process that outlives latchwork and ends the command in its stead.
//!
//! It starts with every signal blocked, in a session of its own, in the root directory, with the
//! frames on its standard input and its report on its standard output; it has one more descriptor
//! open, the lifeline, and never touches it. It ends with the run.

use std::process::ExitCode;
use std::time::Duration;

use latchwork::store::Moment;
use latchwork::store::clock::boot_time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal};

use super::frames::{FRAME, Frame, KILLED};
use super::group::Group;
use super::timer::BootTimer;

/// Runs until latchwork says that the command is done, or until there is no latchwork any more and
/// nothing left of the command.
pub(crate) fn main() -> ExitCode {
    // What `ps` shows instead of the name of the link that it was started by: 15 bytes at most.
    let _ = rustix::thread::set_name(c"latchwork-guard");
    let Ok(timer) = BootTimer::new() else { return ExitCode::FAILURE };
    let mut watch = Watch { group: None, kill_at: Moment::NEVER, killed: false };
    let mut pending = Vec::new();
    loop {
        if timer.set(watch.next()).is_err() {
            return ExitCode::FAILURE;
        }
        let stdin = rustix::stdio::stdin();
        let mut waits =
            [PollFd::from_borrowed_fd(stdin, PollFlags::IN), PollFd::new(&timer, PollFlags::IN)];
        // Asked before the look at the pipe: whoever was stopped in between must not act on a
        // moment that has been moved since.
        let due = boot_time() >= watch.next();
        // No time limit: the timer wakes it, and a stopped machine must not count.
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut waits, due.then_some(&at_once)).is_err() {
            continue;
        }
        if waits[0].revents().is_empty() {
            // Nothing newer is to be read.
            if due {
                watch.kill();
            }
            continue;
        }
        let mut buffer = [0; 64 * FRAME];
        match rustix::io::read(stdin, &mut buffer) {
            Ok(0) => {
                // Nobody is left to say "done".
                watch.end();
                return ExitCode::SUCCESS;
            }
            Ok(count) => pending.extend_from_slice(&buffer[..count]),
            Err(_) => continue,
        }
        while let Some((frame, rest)) = pending.split_first_chunk::<FRAME>() {
            match Frame::decode(frame) {
                Some(Frame::Group(pid)) => watch.group = Pid::from_raw(pid).map(Group),
                Some(Frame::KillAt(at)) => watch.kill_at = at,
                Some(Frame::Done) => return ExitCode::SUCCESS,
                None => {}
            }
            pending = rest.to_vec();
        }
    }
}

struct Watch {
    group: Option<Group>,
    kill_at: Moment,
    killed: bool,
}

impl Watch {
    /// When to look again without being told anything.
    fn next(&self) -> Moment {
        if self.killed || self.group.is_none() { Moment::NEVER } else { self.kill_at }
    }

    /// Kills the command, whose time is up although latchwork lives: it may be stopped.
    fn kill(&mut self) {
        // Said first: latchwork must find the word when it sees the command's end.
        let _ = rustix::io::write(rustix::stdio::stdout(), &[KILLED]);
        self.end();
        self.killed = true;
    }

    /// Kills the command's group and returns when nobody in it runs.
    ///
    /// One SIGKILL reaches everyone: a member in the middle of a fork does not get to finish it.
    /// It is sent again all the same, for a member that could not be signalled at first.
    fn end(&self) {
        let Some(group) = self.group else { return };
        let mut nap = Duration::from_millis(1);
        let killed = boot_time();
        loop {
            let _ = group.signal(Signal::KILL);
            if group.is_dead(killed) {
                return;
            }
            let time = Timespec { tv_sec: 0, tv_nsec: nap.subsec_nanos().into() };
            let _ = poll(&mut [], Some(&time));
            nap = (nap * 2).min(Duration::from_millis(50));
        }
    }
}
