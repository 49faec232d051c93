//! The start of a keeper: a fork, and what the keeper reports once it holds the lock.

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

use rustix::fs::{Mode, OFlags};
use rustix::process::setsid;

use crate::exit;

/// The keeper's way to the process that the shell waits for.
#[derive(Debug)]
pub(crate) struct Launcher(UnixStream);

impl Launcher {
    /// A descriptor that becomes readable when that process has ended.
    pub(crate) fn end(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Reports the lock, and lets go of everything that the shell waits for the end of.
    pub(crate) fn report(mut self, assignments: &str) -> std::io::Result<()> {
        self.0.write_all(assignments.as_bytes())?;
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        rustix::stdio::dup2_stdin(null.as_fd())?;
        rustix::stdio::dup2_stdout(null.as_fd())?;
        rustix::stdio::dup2_stderr(null.as_fd())?;
        // A directory in use could not be unmounted.
        std::env::set_current_dir("/")
    }
}

/// Forks a keeper, which runs `keep` in a session of its own and exits with its code. Returns what it
/// reported for the shell to evaluate, or the code of a keeper that ended without a report.
///
/// Call it while the process has one thread.
///
/// # Errors
///
/// What the fork says.
#[expect(unsafe_code, reason = "neither std nor rustix has fork")]
pub(crate) fn launch(keep: impl FnOnce(Launcher) -> u8) -> std::io::Result<Result<String, u8>> {
    let (mut mine, its) = UnixStream::pair()?;
    // SAFETY: this process has one thread, so nothing is locked or half done in the copy.
    let forked = unsafe { libc::fork() };
    match forked {
        -1 => Err(std::io::Error::last_os_error()),
        0 => {
            drop(mine);
            close_inherited();
            // Signals of the terminal are for the process that the shell waits for.
            let _ = setsid();
            std::process::exit(keep(Launcher(its)).into());
        }
        keeper => {
            drop(its);
            let mut assignments = String::new();
            let read = mine.read_to_string(&mut assignments);
            if read.is_ok() && !assignments.is_empty() {
                return Ok(Ok(assignments));
            }
            Ok(Err(wait(keeper)))
        }
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
fn wait(keeper: i32) -> u8 {
    let options = rustix::process::WaitOptions::empty();
    let status = rustix::process::Pid::from_raw(keeper)
        .and_then(|pid| rustix::process::waitpid(Some(pid), options).ok().flatten());
    let code = status.and_then(|(_, status)| status.exit_status());
    match code.and_then(|code| u8::try_from(code).ok()) {
        Some(code) if code != 0 => code,
        _ => exit::BROKEN,
    }
}
