//! The start of a keeper: a fork, and what both processes say to each other until the shell has its lines.
//!
//! ```text
//! keeper:        ---- lines for the shell --->            <--- "printed" ---   keeps
//! first process:                              prints them                      ends with 0
//! ```
//!
//! Each side notices the other's end by the socket: a keeper whose lines nobody printed lets go.

use std::io;
use std::os::fd::{AsFd, RawFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, getppid, pidfd_open, setsid, waitpid};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::select;

use crate::exit;
use crate::process::signals::{Signals, block_all};
use crate::process::timer::{Naps, watch};

/// What the first process says when the lines are where they belong.
const PRINTED: &[u8] = b"printed";

/// The keeper's way to the process that the shell waits for.
#[derive(Debug)]
pub(crate) struct Launcher(UnixStream);

impl Launcher {
    /// Completes when that process has ended.
    pub(crate) async fn gone(&self) {
        // Nothing is said before the report.
        let _ = self.0.readable().await;
    }

    /// Reports the lock. Returns whether the shell was given the lines. The other process may be stopped, so
    /// this has no end of its own.
    pub(crate) async fn report(mut self, lines: &str) -> io::Result<bool> {
        self.0.write_all(lines.as_bytes()).await?;
        self.0.shutdown().await?;
        let mut said = Vec::new();
        self.0.read_to_end(&mut said).await?;
        Ok(said == PRINTED)
    }
}

/// Lets go of everything that the shell may wait for the end of.
pub(crate) fn leave_the_shell() -> io::Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(null.as_fd())?;
    rustix::stdio::dup2_stdout(null.as_fd())?;
    rustix::stdio::dup2_stderr(null.as_fd())?;
    // A directory in use could not be unmounted.
    std::env::set_current_dir("/")
}

/// What the first process learned.
#[derive(Debug)]
pub(crate) enum Launched {
    /// The lines for the shell; say when they are printed.
    Lines(String, Printed),
    /// The keeper has ended with this code, and said why.
    Ended(u8),
    /// A signal asked for the end; the keeper withdraws.
    Signal(Signal),
    /// Nobody waits for the lines any more; the keeper withdraws.
    Unwanted,
}

/// The first process's way to the keeper.
#[derive(Debug)]
pub(crate) struct Printed {
    socket: UnixStream,
    keeper: i32,
}

impl Printed {
    /// How long a keeper may take to release a hold that no shell has.
    const WITHDRAWN_WITHIN: Duration = Duration::from_secs(5);

    /// Tells the keeper that the shell has its lines. Without this it lets go.
    pub(crate) async fn tell(mut self) -> io::Result<()> {
        self.socket.write_all(PRINTED).await
    }

    /// Lets the keeper release the hold, and waits until it has, so that a script that goes on finds the lock free.
    pub(crate) async fn withdraw(self) {
        drop(self.socket);
        let keeper = Pid::from_raw(self.keeper);
        let end = keeper.and_then(|pid| pidfd_open(pid, PidfdFlags::NONBLOCK).ok());
        if let Some(end) = end.and_then(|end| watch(end).ok()) {
            let Ok(naps) = Naps::new() else { return };
            select! {
                _ = end.readable() => {}
                _ = naps.nap(Self::WITHDRAWN_WITHIN) => {}
            }
        }
    }
}

/// A keeper that was forked, in the first process.
#[derive(Debug)]
pub(crate) struct Forked {
    keeper: i32,
    socket: StdUnixStream,
}

/// Forks a keeper, which runs `keep` in a session of its own and exits with its code.
///
/// Call it while the process has one thread and no runtime.
///
/// # Errors
///
/// What the fork says.
#[expect(unsafe_code, reason = "neither std nor rustix has fork")]
pub(crate) fn fork(keep: impl FnOnce(StdUnixStream) -> u8) -> io::Result<Forked> {
    let (mine, its) = StdUnixStream::pair()?;
    mine.set_nonblocking(true)?;
    its.set_nonblocking(true)?;
    // SAFETY: this process has one thread, so nothing is locked or half done in the copy.
    let forked = unsafe { libc::fork() };
    match forked {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(mine);
            close_inherited();
            // Signals of the terminal are for the process that the shell waits for.
            let _ = setsid();
            // Its end would take the lock from its shell. `Signals` lets through what it listens to.
            block_all();
            std::process::exit(keep(its).into());
        }
        keeper => Ok(Forked { keeper, socket: mine }),
    }
}

impl Launcher {
    /// The keeper's side, within a runtime.
    pub(crate) fn new(socket: StdUnixStream) -> io::Result<Self> {
        UnixStream::from_std(socket).map(Self)
    }
}

impl Forked {
    /// Waits for the keeper's report, for as long as somebody waits for this process.
    pub(crate) async fn wait(self, is_tied: bool) -> io::Result<Launched> {
        let mut signals = Signals::ending()?;
        let mut socket = UnixStream::from_std(self.socket)?;
        let mut lines = String::new();
        select! {
            read = socket.read_to_string(&mut lines) => {
                read?;
            }
            signal = signals.next() => return Ok(Launched::Signal(signal)),
            () = unwanted(is_tied) => return Ok(Launched::Unwanted),
        }
        if lines.is_empty() {
            return Ok(Launched::Ended(code_of(self.keeper)));
        }
        Ok(Launched::Lines(lines, Printed { socket, keeper: self.keeper }))
    }
}

/// Completes when nobody reads standard output any more, or (if this process is tied to it) when the process
/// that started this one has ended.
async fn unwanted(is_tied: bool) {
    let reader = async {
        // Standard output may be a file, of which there is nothing to watch.
        let output = std::io::stdout().as_fd().try_clone_to_owned();
        if let Some(output) = output.ok().and_then(|output| watch(output).ok()) {
            let _ = output.ready(Interest::ERROR).await;
        } else {
            std::future::pending::<()>().await;
        }
    };
    let parent = async {
        let parent = getppid().filter(|_| is_tied);
        let parent = parent.and_then(|pid| pidfd_open(pid, PidfdFlags::NONBLOCK).ok());
        match parent.and_then(|parent| watch(parent).ok()) {
            Some(parent) => drop(parent.readable().await),
            None => std::future::pending().await,
        }
    };
    select! {
        () = reader => {}
        () = parent => {}
    }
}

/// Closes what the shell has open beside the standard streams: a pipe or a locked file would stay open for as
/// long as the keeper lives. What this process opened itself is closed by an exec, and so it differs.
#[expect(unsafe_code, reason = "descriptors that nothing here owns")]
fn close_inherited() {
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers: Vec<RawFd> =
        open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|&number| number > 2) {
        // SAFETY: nothing in this process owns a descriptor that an exec would not close.
        unsafe {
            let flags = libc::fcntl(number, libc::F_GETFD);
            if flags >= 0 && flags & libc::FD_CLOEXEC == 0 {
                libc::close(number);
            }
        }
    }
}

/// The exit code of a keeper that has reported nothing.
fn code_of(keeper: i32) -> u8 {
    let options = WaitOptions::empty();
    let status = Pid::from_raw(keeper).and_then(|pid| waitpid(Some(pid), options).ok().flatten());
    let code = status.and_then(|(_, status)| status.exit_status());
    match code.and_then(|code| u8::try_from(code).ok()) {
        Some(code) if code != 0 => code,
        _ => exit::BROKEN,
    }
}
