//! A system call that is refused, as the filter (seccomp) of a container does.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Refuses one system call, by its number.
#[derive(Debug, Clone, Copy)]
pub struct Refused {
    /// Its number on this machine.
    pub call: u32,
    /// The error that it gets: `EPERM`, as from most profiles, or `ENOSYS`, as from an old kernel.
    pub errno: u16,
}

impl Refused {
    /// Refuses it to the command from its exec on, the loader and the C library included.
    pub fn to(self, command: &mut Command) {
        // SAFETY: two system calls, and nothing is allocated.
        #[expect(unsafe_code, reason = "between fork and exec")]
        unsafe {
            command.pre_exec(move || self.here());
        }
    }

    /// Refuses it to all threads of this process, for good.
    ///
    /// # Errors
    ///
    /// What the system says of the filter.
    #[expect(unsafe_code, reason = "rustix has no filters of system calls")]
    pub fn here(self) -> io::Result<()> {
        let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        let answer = libc::BPF_RET | libc::BPF_K;
        let mut steps = [
            // The number is the first word of what the filter sees.
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, self.call),
            step(answer, 0, 0, libc::SECCOMP_RET_ERRNO | u32::from(self.errno)),
            step(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        // SAFETY: the program and its steps live until the kernel has copied them.
        let done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::syscall(
                    libc::SYS_seccomp,
                    libc::SECCOMP_SET_MODE_FILTER,
                    libc::SECCOMP_FILTER_FLAG_TSYNC,
                    &raw const program,
                ) == 0
        };
        if done { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}
