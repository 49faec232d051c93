//! An init's duty: the first process of a container (or one that asked for it, a subreaper) becomes the
//! parent of every process whose own parent has ended, and has to wait for those that end.
//!
//! Without that they stay as zombies, until the limit on processes of the container is reached and no
//! guardian can start any more. What latchwork has started itself is waited for elsewhere: a command must
//! keep its number, and its exit status, until it is done.

use std::io;
use std::mem::MaybeUninit;
use std::sync::{Mutex, PoisonError};

use latchwork_wire::program::is_running;
use rustix::process::{Pid, WaitId, WaitIdOptions, child_subreaper, getpid, waitid};

use tokio::runtime::Runtime;

use super::group::{ended_children, proc_is_own};
use super::signals::Signals;

/// The processes that latchwork has started and still waits for.
static OWN: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Takes note of a process that is waited for elsewhere. Call it on the main thread, before the next `await`
/// after the start.
pub(super) fn keep(pid: Pid) {
    OWN.lock().unwrap_or_else(PoisonError::into_inner).push(pid);
}

/// Waits for the end of such a process.
pub(super) fn wait_for(pid: Pid) {
    let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
    OWN.lock().unwrap_or_else(PoisonError::into_inner).retain(|&own| own != pid);
}

fn is_own(pid: Pid) -> bool {
    OWN.lock().unwrap_or_else(PoisonError::into_inner).contains(&pid) || is_running(pid)
}

/// Reaps orphans for as long as the runtime runs, if this process can get any.
pub(crate) fn start(runtime: &Runtime) {
    // Those of a shell that has become this process (`worker & exec latchwork ...`) are children as well.
    let adopts = getpid() == Pid::INIT || matches!(child_subreaper(), Ok(Some(_)));
    if !adopts && !has_children() {
        return;
    }
    // Without it they stay for as long as latchwork lives, as ever.
    let _within = runtime.enter();
    let Ok(mut signals) = Signals::of_children() else { return };
    runtime.spawn(async move {
        loop {
            reap();
            signals.next().await;
        }
    });
}

fn has_children() -> bool {
    ended_child().is_ok()
}

/// Reaps all that have ended and are not waited for elsewhere.
fn reap() {
    while let Ok(Some(pid)) = ended_child() {
        if is_own(pid) {
            // The kernel names the same one again and again, so /proc has to tell of the others. Where there
            // is none, they follow once this one has been waited for.
            let ended = if proc_is_own() { ended_children() } else { Vec::new() };
            ended.into_iter().filter(|&pid| !is_own(pid)).for_each(wait);
            return;
        }
        wait(pid);
    }
}

fn wait(pid: Pid) {
    let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
}

/// A child that has ended, and goes on to be one. An error where there are no children.
#[expect(unsafe_code, reason = "rustix does not tell which child it is")]
fn ended_child() -> io::Result<Option<Pid>> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: zeroes are a valid siginfo_t, which the call fills if a child has ended, with its number.
    unsafe {
        match libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), options) {
            0 => Ok(Pid::from_raw(info.assume_init().si_pid())),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
