//! A program that is run for what it prints, for a bounded time.

use std::io;
#[cfg(unix)]
use std::io::{ErrorKind, Read};
#[cfg(unix)]
use std::mem::MaybeUninit;
#[cfg(unix)]
use std::os::fd::AsFd;
#[cfg(unix)]
use std::os::unix::process::{CommandExt, ExitStatusExt};
#[cfg(unix)]
use std::process::Child;
use std::process::{Command, ExitStatus, Stdio};
#[cfg(unix)]
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

#[cfg(unix)]
use latchwork_store::clock::boot_time;
#[cfg(unix)]
use rustix::event::{PollFd, PollFlags, Timespec, poll};
#[cfg(unix)]
use rustix::fs::{OFlags, fcntl_setfl};
#[cfg(unix)]
use rustix::process::{Pid, Signal, kill_process_group};

/// How long a program may run.
pub const LIMIT: Duration = Duration::from_secs(10);
/// How often a program that prints nothing is checked.
#[cfg(unix)]
const LOOK: Duration = Duration::from_millis(20);
/// Output and errors are read no further.
#[cfg(unix)]
const LONGEST: usize = 64 * 1024;

/// The programs that run, so that an init does not wait for them.
#[cfg(unix)]
static RUNNING: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Whether [`run`] has started this child and still waits for it.
#[cfg(unix)]
#[must_use]
pub fn is_running(pid: Pid) -> bool {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner).contains(&pid)
}

/// What a program did.
#[derive(Debug)]
pub struct Ran {
    /// None if it was killed.
    pub status: Option<ExitStatus>,
    /// Its standard output.
    pub output: Vec<u8>,
    /// Its standard error.
    pub errors: Vec<u8>,
}

/// Returns how a program ended, in words.
pub fn how(status: ExitStatus) -> String {
    #[cfg(unix)]
    if let Some(signal) = status.signal() {
        return format!("ended by signal {signal}");
    }
    status.code().map_or_else(|| "failed".into(), |code| format!("exit status {code}"))
}

/// Runs a program in a process group of its own, without input. After [`LIMIT`] the whole group is killed. Blocks.
///
/// # Errors
///
/// If it cannot be started, or its pipes cannot be read.
#[cfg(unix)]
pub fn run(command: &mut Command) -> io::Result<Ran> {
    command.process_group(0);
    block_nothing_in(command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (mut child, pid) = {
        // Known before anybody can see its end.
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let child = command.spawn()?;
        let pid = Pid::from_child(&child);
        running.push(pid);
        (child, pid)
    };
    let read = read(&mut child);
    // Once it was waited for, the number of its group may be another's.
    if matches!(child.try_wait(), Ok(None)) {
        // What it has started may have its pipes.
        let _ = kill_process_group(pid, Signal::KILL);
        let _ = child.wait();
    }
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner).retain(|&running| running != pid);
    read
}

/// Has the program begin with no signal blocked, whatever this process blocks.
#[cfg(unix)]
#[expect(unsafe_code, reason = "std hands the mask on, and rustix has no safe signal masks")]
fn block_nothing_in(command: &mut Command) {
    let unblock = || {
        let mut none = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initialises the set before it is read; neither call fails with valid pointers.
        unsafe {
            libc::sigemptyset(none.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
        }
        Ok(())
    };
    // SAFETY: both calls are allowed between fork and exec, and nothing is allocated.
    unsafe { command.pre_exec(unblock) };
}

/// Runs a program without input. Blocks; this system gives no way to end its whole group.
///
/// # Errors
///
/// If it cannot be started, or its pipes cannot be read.
#[cfg(not(unix))]
pub fn run(command: &mut Command) -> io::Result<Ran> {
    let ended = command.stdin(Stdio::null()).output()?;
    Ok(Ran { status: Some(ended.status), output: ended.stdout, errors: ended.stderr })
}

/// Reads until the command has ended; a process that it has left running is not waited for.
#[cfg(unix)]
fn read(child: &mut Child) -> io::Result<Ran> {
    let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
    for pipe in [out.as_ref().map(AsFd::as_fd), err.as_ref().map(AsFd::as_fd)] {
        pipe.map_or(Ok(()), |pipe| fcntl_setfl(pipe, OFlags::NONBLOCK))?;
    }
    let mut ran = Ran { status: None, output: Vec::new(), errors: Vec::new() };
    let begun_at = boot_time();
    loop {
        let ended = child.try_wait()?;
        drain(&mut out, &mut ran.output)?;
        drain(&mut err, &mut ran.errors)?;
        if ended.is_some() || boot_time().since(begun_at) >= LIMIT {
            return Ok(Ran { status: ended, ..ran });
        }
        let open = [out.as_ref().map(AsFd::as_fd), err.as_ref().map(AsFd::as_fd)];
        let mut open: Vec<_> = open
            .into_iter()
            .flatten()
            .map(|pipe| PollFd::from_borrowed_fd(pipe, PollFlags::IN))
            .collect();
        let nap = Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as _ };
        match poll(&mut open, Some(&nap)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Takes what there is; a pipe that has ended, or says too much, is closed.
#[cfg(unix)]
fn drain(pipe: &mut Option<impl Read>, into: &mut Vec<u8>) -> io::Result<()> {
    let mut part = [0; 4096];
    while let Some(open) = pipe {
        match open.read(&mut part) {
            Ok(0) => *pipe = None,
            Ok(length) => into.extend_from_slice(&part[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if into.len() > LONGEST {
            *pipe = None;
        }
    }
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// A keeper of a shell blocks every signal, and a command that waits for its own child would wait for ever.
    #[test]
    #[expect(unsafe_code, reason = "rustix has no safe signal masks")]
    fn a_program_begins_with_no_signal_blocked() {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigfillset initialises the set before it is read; neither call fails with valid pointers.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
        }
        let ran = run(Command::new("grep").args(["SigBlk", "/proc/self/status"])).unwrap();
        assert_eq!(String::from_utf8_lossy(&ran.output).trim(), "SigBlk:\t0000000000000000");
    }
}
