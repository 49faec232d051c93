//! latchwork's side of the guardian: start it, tell it what it must know, notice its end.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use latchwork_store::Moment;
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::unix::AsyncFd;

use super::child::{Child, pipe};
use super::frames::{FAILED, Frame, KILLED, READY};
use super::guardian_main::{self, Belongings};
use super::reaper;
use super::strays::Strays;
use super::timer::watch;

/// The guardian of one run.
#[derive(Debug)]
pub(crate) struct Guardian {
    pid: Pid,
    frames: OwnedFd,
    report: AsyncFd<OwnedFd>,
}

/// What the guardian lets latchwork know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Report {
    /// It killed the command, because its time was up and latchwork had not done so.
    Killed,
    /// It is dead.
    Gone,
}

impl Guardian {
    /// Starts a guardian that keeps these descriptors open for as long as the command may run: lifelines, and
    /// what tells an outer command that this one has ended.
    ///
    /// It is forked and executes nothing: to load this binary once more was a fifth of the processor time
    /// of a free run (ADR 0039).
    pub(crate) fn start<'a>(
        kept: impl IntoIterator<Item = BorrowedFd<'a>>,
        strays: Strays,
    ) -> io::Result<Self> {
        let (frames_read, frames) = pipe()?;
        let (report, report_write) = pipe()?;
        // Duplicates: what is forked from this process has the descriptors themselves no longer.
        let kept = kept.into_iter().map(|fd| fd.try_clone_to_owned());
        let kept = kept.collect::<io::Result<_>>()?;
        let belongings = Belongings { frames: frames_read, report: report_write, kept, strays };
        let pid = fork_blocked(belongings)?;
        reaper::keep(pid);
        Ok(Self { pid, frames, report: watch(report)? })
    }

    /// Waits until the guardian stands by itself: with signals blocked and in a session of its own. Called
    /// once, by the command's process before its exec, for which the guardian starts meanwhile.
    pub(crate) fn ready(&self) -> Result<(), Errno> {
        let mut word = [0];
        // The other ends of the pipe are the guardian's, so its death ends this.
        match retry_on_intr(|| rustix::io::read(self.report.get_ref(), &mut word))? {
            1 if word[0] == READY => Ok(()),
            _ => Err(Errno::CHILD),
        }
    }

    /// Lets [`report`](Self::report) and [`report_now`](Self::report_now) read without blocking.
    pub(crate) fn started(&self) -> io::Result<()> {
        Ok(rustix::io::ioctl_fionbio(self.report.get_ref(), true)?)
    }

    /// The pipe, for the command to write its group into.
    pub(crate) fn frames(&self) -> BorrowedFd<'_> {
        self.frames.as_fd()
    }

    /// Says by when the command must be dead. False if that could not be said (a stopped guardian
    /// with a full pipe, a dead one): say it again later.
    pub(crate) fn kill_at(&self, at: Moment) -> bool {
        rustix::io::write(&self.frames, &Frame::KillAt(at).encode()).is_ok()
    }

    /// Completes when the guardian has something to report. May be dropped.
    pub(crate) async fn report(&self) -> Report {
        loop {
            let Ok(mut ready) = self.report.readable().await else { return Report::Gone };
            match self.report_now() {
                Some(report) => return report,
                None => ready.clear_ready(),
            }
        }
    }

    /// What the guardian has reported until now.
    pub(crate) fn report_now(&self) -> Option<Report> {
        let mut word = [0];
        loop {
            match rustix::io::read(self.report.get_ref(), &mut word) {
                Ok(1) if word[0] == KILLED => return Some(Report::Killed),
                // Its reason follows, for `last_words`.
                Ok(1) if word[0] == FAILED => return Some(Report::Gone),
                Ok(1) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return None,
                Ok(_) | Err(_) => return Some(Report::Gone),
            }
        }
    }

    /// Why a guardian ended that is gone, in its own words; empty if it did not say so.
    pub(crate) fn last_words(&self) -> String {
        let mut words = [0; 256];
        let length = rustix::io::read(self.report.get_ref(), &mut words).unwrap_or(0);
        let signs = [READY, KILLED, FAILED].map(char::from);
        String::from_utf8_lossy(&words[..length]).trim_start_matches(signs).to_owned()
    }

    /// Lets the guardian go, even if the group of `child` still has members; `child` has ended or never began.
    pub(crate) fn done(self, child: Option<Child>) -> Left {
        let _ = rustix::io::write(&self.frames, &Frame::Done.encode());
        // It has no work left, and a stopped one would not read that it is done, and keep the lock closed.
        let _ = kill_process(self.pid, Signal::KILL);
        Left { pid: self.pid, report: self.report, child }
    }
}

/// The remains of a command that has ended, or did not start: a guardian that was dismissed, and the
/// command's number.
#[derive(Debug)]
pub(crate) struct Left {
    pid: Pid,
    report: AsyncFd<OwnedFd>,
    child: Option<Child>,
}

impl Left {
    /// Completes when nothing is left, so that latchwork leaves no process behind. The lock may be released
    /// before: this takes as long as the release.
    pub(crate) async fn gone(self) {
        // The pipe's end comes with the guardian's own; then waiting for it does not block.
        while let Ok(mut ready) = self.report.readable().await {
            match rustix::io::read(self.report.get_ref(), &mut [0; 16]) {
                Err(Errno::AGAIN) => ready.clear_ready(),
                Ok(1..) | Err(Errno::INTR) => {}
                _ => break,
            }
        }
        reaper::wait_for(self.pid);
        // While the command is not waited for, its group's number is its own; so the guardian was first.
        if let Some(child) = self.child {
            child.reap();
        }
    }
}

/// Forks a guardian that starts with every signal blocked: what reaches latchwork's group in this moment
/// must neither end it nor run a handler of latchwork's in it.
#[expect(unsafe_code, reason = "neither std nor rustix has fork or signal masks")]
fn fork_blocked(belongings: Belongings) -> io::Result<Pid> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the set that is read next, and the first pthread_sigmask the one
    // that the last one reads; neither fails with valid arguments. The child of the fork goes on with one
    // thread, as a copy of this one: it allocates, which the C library allows after its `fork`, takes no
    // other lock that another thread may have had, and never returns from `guardian_main::live`.
    let forked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let forked = libc::fork();
        if forked == 0 {
            guardian_main::live(belongings);
        }
        let failed = io::Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        if forked < 0 { Err(failed) } else { Ok(forked) }
    };
    Pid::from_raw(forked?).ok_or_else(|| io::Error::other("no number"))
}
