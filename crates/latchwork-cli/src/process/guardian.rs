//! latchwork's side of the guardian: start it, tell it what it must know, notice its end.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use latchwork::store::Moment;
use rustix::io::{Errno, FdFlags};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, setsid, waitid};
use tokio::io::unix::AsyncFd;

use super::child::pipe;
use super::frames::{Frame, KILLED};
use super::timer::watch;

/// The first argument that makes this binary a guardian.
pub(crate) const ROLE: &str = "__guardian";

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
    /// Starts a guardian that keeps `lifeline` open for as long as the command may run.
    #[expect(unsafe_code, reason = "pre_exec")]
    pub(crate) fn start(lifeline: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        let (frames_read, frames) = pipe()?;
        let (report, report_write) = pipe()?;
        // A duplicate: what is forked from this process has the descriptor itself no longer.
        let lifeline = lifeline.map(|fd| fd.try_clone_to_owned()).transpose()?;
        let inherited = lifeline.as_ref().map(|fd| fd.as_raw_fd());
        // The running file, also when its name is gone or has another file by now.
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("latchwork-guardian")
            .arg(ROLE)
            .current_dir("/")
            .stdin(frames_read)
            .stdout(report_write)
            .stderr(Stdio::null());
        let prepare = move || {
            setsid()?;
            close_all_on_exec()?;
            if let Some(fd) = inherited {
                // SAFETY: `lifeline` is open over the whole of `spawn` below.
                rustix::io::fcntl_setfd(unsafe { BorrowedFd::borrow_raw(fd) }, FdFlags::empty())?;
            }
            let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
            // SAFETY: sigfillset initialises the set that the second call reads.
            unsafe {
                libc::sigfillset(all.as_mut_ptr());
                libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
            }
            Ok(())
        };
        // SAFETY: between fork and exec the closure makes system calls only; it does not allocate
        // and takes no lock.
        unsafe { command.pre_exec(prepare) };
        let child = command.spawn()?;
        let pid = Pid::from_child(&child);
        // `command` still holds the guardian's ends of the pipes.
        drop(command);
        drop(lifeline);
        rustix::io::ioctl_fionbio(report.as_fd(), true)?;
        Ok(Self { pid, frames, report: watch(report)? })
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
                Ok(1) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return None,
                Ok(_) | Err(_) => return Some(Report::Gone),
            }
        }
    }

    /// Lets the guardian go, whatever is left of the command's group.
    pub(crate) fn done(self) -> Leaving {
        let _ = rustix::io::write(&self.frames, &Frame::Done.encode());
        Leaving { pid: self.pid, report: self.report }
    }
}

/// A guardian that was told to go.
#[derive(Debug)]
pub(crate) struct Leaving {
    pid: Pid,
    report: AsyncFd<OwnedFd>,
}

impl Leaving {
    /// Completes when it has gone, so that latchwork leaves no process behind, and no guardian that
    /// stands still keeps the lock closed.
    pub(crate) async fn gone(self) {
        // It has no work left, and a stopped one would not read that it is done.
        let _ = kill_process(self.pid, Signal::KILL);
        // The pipe's end comes with the process's own; then waiting for it does not block.
        while let Ok(mut ready) = self.report.readable().await {
            match rustix::io::read(self.report.get_ref(), &mut [0; 16]) {
                Err(Errno::AGAIN) => ready.clear_ready(),
                Ok(1..) | Err(Errno::INTR) => {}
                _ => break,
            }
        }
        let _ = waitid(WaitId::Pid(self.pid), WaitIdOptions::EXITED);
    }
}

/// Marks every descriptor but the standard ones to be closed on exec, so that the guardian keeps
/// no pipe or file of its callers open. Async-signal-safe.
#[expect(unsafe_code, reason = "neither std nor rustix has close_range")]
fn close_all_on_exec() -> io::Result<()> {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 1 << 2;
    // SAFETY: sets a flag on descriptors of this process, which is about to exec; closes none.
    let done =
        unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, CLOSE_RANGE_CLOEXEC) };
    if done == 0 {
        return Ok(());
    }
    // Before Linux 5.11. An unused number answers EBADF, which is as good.
    for fd in 3..1024 {
        // SAFETY: as above.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    Ok(())
}
