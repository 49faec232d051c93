//! What this process asks of the system: its name, its limits, and whether a runtime can start at all.
//!
//! A system call may be refused, by a limit or by a filter (seccomp) of a container. Then the answer is an
//! error or "unknown", and never a panic.

use std::io;

/// Returns the name of this host for people.
pub fn this_host() -> String {
    host().unwrap_or_else(|| "unknown host".to_owned())
}

#[cfg(unix)]
#[expect(unsafe_code, reason = "rustix's uname panics where the system call is refused")]
fn host() -> Option<String> {
    let mut name = [0_u8; 256];
    // SAFETY: the call writes at most that many bytes, and the last one stays a zero.
    let failed = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    let length = name.iter().position(|&byte| byte == 0)?;
    (failed == 0).then(|| String::from_utf8_lossy(&name[..length]).into_owned())
}

#[cfg(not(unix))]
fn host() -> Option<String> {
    std::env::var("COMPUTERNAME").ok()
}

/// A limit of this process.
#[cfg(unix)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// What applies now; `None` is no limit.
    pub current: Option<u64>,
    /// Up to where this process may raise it.
    pub maximum: Option<u64>,
}

/// Returns the limit on the size of files (`ulimit -f`). Where the system does not say, it is none.
#[cfg(unix)]
pub fn file_size_limit() -> Limit {
    limit(libc::RLIMIT_FSIZE)
}

/// Returns the limit on open files (`ulimit -n`). Where the system does not say, it is none.
#[cfg(unix)]
pub fn open_files_limit() -> Limit {
    limit(libc::RLIMIT_NOFILE)
}

/// Whether the memory of this process is limited: a thread that has no room for its stack is refused like one too many.
fn is_memory_limited() -> bool {
    #[cfg(unix)]
    return [libc::RLIMIT_AS, libc::RLIMIT_DATA].iter().any(|&it| limit(it).current.is_some());
    #[cfg(not(unix))]
    false
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
type Which = libc::__rlimit_resource_t;
#[cfg(all(unix, not(all(target_os = "linux", target_env = "gnu"))))]
type Which = libc::c_int;

#[cfg(unix)]
#[expect(unsafe_code, reason = "rustix's getrlimit panics where the system call is refused")]
fn limit(which: Which) -> Limit {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: it is valid for the call, which fills it or leaves it as it is.
    unsafe { libc::getrlimit(which, &raw mut limit) };
    let known = |value| (value != libc::RLIM_INFINITY).then_some(value);
    Limit { current: known(limit.rlim_cur), maximum: known(limit.rlim_max) }
}

/// Tries what a runtime of tokio needs of the system: tokio panics where that is refused later.
///
/// # Errors
///
/// What the system says: too few descriptors, or a system call that a filter refuses.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "the very calls that tokio makes")]
pub fn check_for_runtime() -> io::Result<()> {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    /// How many descriptors a runtime takes at its start.
    const DESCRIPTORS: usize = 8;

    fn done(answer: isize) -> io::Result<()> {
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
    let opened = |fd: i32| {
        done(fd as isize)?;
        // SAFETY: just opened, and nobody else's.
        Ok::<_, io::Error>(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    let (mut byte, one) = ([0_u8; 1], 1_u64.to_ne_bytes());
    let mut pair = [-1; 2];
    let flags = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: every pointer is valid for its call, with the length of what it points to.
    unsafe {
        let wakers = (0..DESCRIPTORS - 3)
            .map(|_| opened(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)))
            .collect::<io::Result<Vec<_>>>()?;
        let waker = wakers[0].as_raw_fd();
        done(libc::write(waker, one.as_ptr().cast(), one.len()))?;
        done(libc::socketpair(libc::AF_UNIX, flags, 0, pair.as_mut_ptr()) as isize)?;
        let signals = (opened(pair[0])?, opened(pair[1])?);
        let read = libc::recv(signals.0.as_raw_fd(), byte.as_mut_ptr().cast(), byte.len(), 0);
        match done(read) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => read?,
        }
        let poll = opened(libc::epoll_create1(libc::EPOLL_CLOEXEC))?;
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        let add = libc::EPOLL_CTL_ADD;
        done(libc::epoll_ctl(poll.as_raw_fd(), add, waker, &raw mut event) as isize)?;
        done(libc::epoll_wait(poll.as_raw_fd(), &raw mut event, 1, 0) as isize)
    }
}

/// Tries what a runtime needs of the system.
///
/// # Errors
///
/// None here.
#[cfg(not(target_os = "linux"))]
pub fn check_for_runtime() -> io::Result<()> {
    Ok(())
}

/// Returns what to do about something that the system has refused to this process.
pub fn refusal_step(error: &io::Error) -> &'static str {
    use io::ErrorKind::{OutOfMemory, PermissionDenied, Unsupported, WouldBlock};
    match error.kind() {
        WouldBlock | OutOfMemory if is_memory_limited() => {
            "raise the limits on memory (ulimit -v, ulimit -d), or those on processes and threads (ulimit -u)"
        }
        WouldBlock | OutOfMemory => {
            "raise the limit on processes and threads of this user (ulimit -u) or of the container (its pids limit)"
        }
        PermissionDenied | Unsupported => {
            "allow the system call in the seccomp filter of this container or unit (one that does not know clone3 \
             must answer ENOSYS), or update the container runtime"
        }
        _ => "raise the limit of open files (ulimit -n)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_tells_of_this_process() {
        assert!(!this_host().is_empty());
        check_for_runtime().unwrap();
        #[cfg(unix)]
        {
            let files = open_files_limit();
            assert!(files.current.is_none_or(|limit| limit > 0), "{files:?}");
            assert!(files.maximum.is_none_or(|limit| Some(limit) >= files.current), "{files:?}");
        }
    }

    #[test]
    fn a_step_fits_the_refusal() {
        for (number, step) in
            [(11, "ulimit -u"), (1, "seccomp"), (38, "seccomp"), (24, "ulimit -n")]
        {
            let error = io::Error::from_raw_os_error(number);
            assert!(refusal_step(&error).contains(step), "{error}");
        }
    }
}
