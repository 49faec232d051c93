//! The guardian itself: a process that outlives latchwork and ends the command in its stead.
//!
//! It is forked from latchwork with every signal blocked, and leaves it at once: for a session of its own,
//! the root directory, the frames on its standard input and its report on its standard output. It keeps
//! other descriptors open, such as the lifeline, and never touches them. It ends with the run.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use latchwork_store::Moment;
use latchwork_store::clock::boot_time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal};

use super::frames::{FAILED, FRAME, Frame, KILLED, READY};
use super::group::Group;
use super::strays::Strays;
use super::timer::BootTimer;
use crate::process::name;

/// What a guardian has open.
#[derive(Debug)]
pub(crate) struct Belongings {
    pub(crate) frames: OwnedFd,
    pub(crate) report: OwnedFd,
    /// Whose other sides are to know by their end that the command has ended.
    pub(crate) kept: Vec<OwnedFd>,
    /// The command's processes outside of its group.
    pub(crate) strays: Strays,
}

/// A guardian's life, in the process that was forked for it.
#[expect(unsafe_code, reason = "neither std nor rustix has _exit")]
pub(crate) fn live(mut belongings: Belongings) -> ! {
    // What latchwork would do next is not the guardian's to do, whatever happens here.
    let has_moved = Cell::new(false);
    let lived: Result<io::Result<()>, _> = catch_unwind(AssertUnwindSafe(|| {
        // First what protects it from the fate of latchwork's group, and the word that the command waits
        // for; the rest takes longer, and nobody has to wait for it.
        rustix::process::setsid().map_err(|error| failed("setsid", error))?;
        rustix::io::write(&belongings.report, &[READY])?;
        let timer = leave(&belongings, &has_moved)?;
        watch_over(rustix::stdio::stdin(), rustix::stdio::stdout(), &timer, &mut belongings.strays)
    }));
    if let Ok(Err(error)) = &lived {
        // latchwork says why, if it is still there.
        let words = [&[FAILED], error.to_string().as_bytes()].concat();
        let _ = match has_moved.get() {
            true => rustix::io::write(rustix::stdio::stdout(), &words),
            false => rustix::io::write(&belongings.report, &words),
        };
    }
    // SAFETY: ends this process without the destructors and handlers of the one that it was forked from.
    unsafe { libc::_exit(if matches!(lived, Ok(Ok(()))) { 0 } else { 1 }) }
}

fn failed(call: &str, error: impl Into<io::Error>) -> io::Error {
    io::Error::other(format!("{call}: {}", error.into()))
}

/// Leaves latchwork's directory, descriptors and name behind. Says when the report is the standard output.
fn leave(belongings: &Belongings, has_moved: &Cell<bool>) -> io::Result<BootTimer> {
    rustix::process::chdir("/").map_err(|error| failed("chdir", error))?;
    // What `ps` shows: the first by default, without the name by which `pkill latchwork` finds latchwork, and the
    // second with `ps -f`.
    let _ = rustix::thread::set_name(c"lw-guardian");
    name::set(c"latchwork-guardian");
    rustix::stdio::dup2_stdin(&belongings.frames).map_err(|error| failed("dup2", error))?;
    rustix::stdio::dup2_stdout(&belongings.report).map_err(|error| failed("dup2", error))?;
    has_moved.set(true);
    // First, so that there is a descriptor for the rest also where latchwork has used up all of them.
    close_all_but_standard(&belongings.kept);
    let null = rustix::fs::open("/dev/null", rustix::fs::OFlags::WRONLY, rustix::fs::Mode::empty());
    // Without it, the guardian keeps latchwork's standard error open.
    if let Ok(null) = null {
        let _ = rustix::stdio::dup2_stderr(&null);
    }
    BootTimer::new().map_err(|error| failed("timerfd_create", error))
}

/// Closes every descriptor but the standard ones and those in `kept`, so that the guardian keeps no pipe or file
/// of its callers open, nor latchwork's end of its own pipe.
#[expect(unsafe_code, reason = "neither std nor rustix has close_range")]
fn close_all_but_standard(kept: &[OwnedFd]) {
    let close = |from: libc::c_uint, to: libc::c_uint| {
        // SAFETY: nobody uses what is closed: the guardian never returns to what owns it.
        if from > to || unsafe { libc::syscall(libc::SYS_close_range, from, to, 0) } == 0 {
            return;
        }
        // Before Linux 5.9. An unused number answers EBADF, which is as good.
        for fd in from..=to.min(1024) {
            // SAFETY: as above.
            unsafe { libc::close(fd as libc::c_int) };
        }
    };
    let mut kept: Vec<_> = kept.iter().map(|fd| fd.as_raw_fd() as libc::c_uint).collect();
    kept.sort_unstable();
    let mut from = 3;
    for kept in kept {
        // None of them is below 3: those are open already in a program that the standard library started.
        close(from, kept - 1);
        from = kept + 1;
    }
    close(from, libc::c_uint::MAX);
}

/// Runs until latchwork says that the command is done, or until there is no latchwork any more and
/// nothing left of the command.
fn watch_over(
    frames: impl AsFd,
    report: impl AsFd,
    timer: &BootTimer,
    strays: &mut Strays,
) -> io::Result<()> {
    let (frames, report) = (frames.as_fd(), report.as_fd());
    let mut watch = Watch { report, group: None, strays, kill_at: Moment::NEVER, killed: false };
    let mut pending = Vec::new();
    loop {
        timer.set(watch.next()).map_err(|error| failed("timerfd_settime", error))?;
        let mut waits =
            [PollFd::from_borrowed_fd(frames, PollFlags::IN), PollFd::new(timer, PollFlags::IN)];
        // Read before the check of the pipe: a guardian that was stopped in between must not act on
        // a moment that has been moved since.
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
        match rustix::io::read(frames, &mut buffer) {
            Ok(0) => {
                // Nobody is left to say "done".
                watch.end();
                return Ok(());
            }
            Ok(count) => pending.extend_from_slice(&buffer[..count]),
            Err(_) => continue,
        }
        while let Some((frame, rest)) = pending.split_first_chunk::<FRAME>() {
            match Frame::decode(frame) {
                Some(Frame::Group(pid)) => watch.group = Pid::from_raw(pid).map(Group),
                Some(Frame::KillAt(at)) => watch.kill_at = at,
                Some(Frame::Done) => return Ok(()),
                None => {}
            }
            pending = rest.to_vec();
        }
    }
}

struct Watch<'a> {
    report: BorrowedFd<'a>,
    group: Option<Group>,
    strays: &'a mut Strays,
    kill_at: Moment,
    killed: bool,
}

impl Watch<'_> {
    /// When to check next if no frame comes.
    fn next(&self) -> Moment {
        if self.killed || self.group.is_none() { Moment::NEVER } else { self.kill_at }
    }

    /// Kills the command, whose time is up although latchwork lives: it may be stopped.
    fn kill(&mut self) {
        // Said first: latchwork must find the word when it sees the command's end.
        let _ = rustix::io::write(self.report, &[KILLED]);
        self.end();
        self.killed = true;
    }

    /// Kills the command's group, with what has left it, and returns when nobody of them runs.
    ///
    /// One SIGKILL reaches everyone: a member in the middle of a fork does not get to finish it.
    /// It is sent again all the same, for a member that could not be signalled at first.
    ///
    /// A group that was seen empty gets no further signal: its number may be another's.
    fn end(&mut self) {
        if self.group.is_none() && !self.killed {
            return;
        }
        let mut nap = Duration::from_millis(1);
        let killed = boot_time();
        // Before their parents are killed. All that can take long follows the kill.
        self.strays.look_before_kill(self.group);
        loop {
            if let Some(group) = self.group {
                let _ = group.signal(Signal::KILL);
            }
            self.strays.kill();
            self.group = self.group.filter(|group| !group.is_dead(killed));
            self.strays.look(self.group);
            if !self.strays.kill() && self.group.is_none() {
                return;
            }
            let time = Timespec { tv_sec: 0, tv_nsec: nap.subsec_nanos().into() };
            let _ = poll(&mut [], Some(&time));
            nap = (nap * 2).min(Duration::from_millis(50));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::super::child::pipe;
    use super::*;

    /// What a guardian finds that goes on after it was stopped: moments that were moved since.
    #[test]
    fn a_guardian_reads_everything_before_it_acts() {
        let mut victim = Command::new("sleep").arg("300").process_group(0).spawn().unwrap();
        let (frames_read, frames) = pipe().unwrap();
        let (report, report_write) = pipe().unwrap();
        let tell =
            |frame: Frame| assert_eq!(rustix::io::write(&frames, &frame.encode()), Ok(FRAME));
        tell(Frame::Group(victim.id() as i32));
        // More than it reads at once.
        for past in 1..=200 {
            tell(Frame::KillAt(Moment::from_nanos(past)));
        }
        tell(Frame::Done);
        let timer = BootTimer::new().unwrap();
        let watched = watch_over(&frames_read, &report_write, &timer, &mut Strays::new(None));
        let alive = victim.try_wait().unwrap().is_none();
        victim.kill().unwrap();
        victim.wait().unwrap();
        watched.unwrap();
        drop(report_write);
        assert_eq!(rustix::io::read(&report, &mut [0; 16]), Ok(0), "it killed nobody");
        assert!(alive);
    }
}
