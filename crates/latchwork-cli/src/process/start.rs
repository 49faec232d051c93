//! How the command's process is made: in latchwork's own memory, until it executes the command.
//!
//! A fork copies the tables of that memory, and latchwork then copies each page that it writes to. A
//! process that shares the memory until its exec, with the parent paused meanwhile, as `vfork` and
//! `posix_spawn` make it, costs neither; but the standard library offers no such way for a process that
//! does something of its own before the exec.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::signals::{Mask, file_size_ends, handled, is_ignored};

/// What is executed: a program, which is looked for in `PATH`, its arguments, and its environment.
pub(super) struct Image {
    words: Pointers,
    environment: Pointers,
    /// Bytes of the longest path that is tried.
    longest_path: usize,
}

impl Image {
    /// `words` with this process's environment, and `added` to it; `None` takes a variable away.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a word with a zero byte in it.
    pub(super) fn new(
        words: &[OsString],
        added: &[(&'static str, Option<OsString>)],
    ) -> io::Result<Self> {
        let pair = |name: &OsStr, value: &OsStr| {
            CString::new([name.as_bytes(), b"=", value.as_bytes()].concat())
        };
        let inherited = std::env::vars_os().filter(|(name, _)| added.iter().all(|it| name != it.0));
        let inherited = inherited.map(|(name, value)| pair(&name, &value));
        let added =
            added.iter().filter_map(|(name, value)| Some((OsStr::new(name), value.as_ref()?)));
        let added = added.map(|(name, value)| pair(name, value));
        let search = std::env::var_os("PATH").map_or(0, |path| path.len());
        Ok(Self {
            longest_path: search + words[0].len(),
            environment: Pointers::new(inherited.chain(added).collect::<Result<_, _>>()?),
            words: Pointers::new(
                words
                    .iter()
                    .map(|word| CString::new(word.clone().into_vec()))
                    .collect::<Result<_, _>>()?,
            ),
        })
    }
}

/// Texts for the C library: an array of pointers that ends with a null.
struct Pointers {
    // Never read, but pointed to.
    _texts: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
}

impl Pointers {
    fn new(texts: Vec<CString>) -> Self {
        let pointers = texts.iter().map(|text| text.as_ptr());
        let pointers = pointers.chain([std::ptr::null()]).collect();
        Self { _texts: texts, pointers }
    }
}

/// What both processes see.
struct Shared<'a, F> {
    prepare: &'a F,
    image: &'a Image,
    mask: &'a Mask,
    ignores_pipe: bool,
    /// Why the command was not executed; zero while nothing is wrong.
    errno: i32,
}

/// Makes a process that calls `prepare` and executes `image`, with these signals blocked, SIGPIPE ignored
/// or not, and no signal handled. Returns when it has done so or failed.
///
/// # Errors
///
/// What `prepare` or the exec says.
///
/// # Safety
///
/// `prepare` runs in another process but in this one's memory: it makes system calls only, takes no lock,
/// allocates nothing, and does not panic.
#[expect(unsafe_code, reason = "processes that share memory")]
pub(super) unsafe fn start<F: Fn() -> Result<(), Errno>>(
    image: &Image,
    mask: &Mask,
    ignores_pipe: bool,
    prepare: &F,
) -> io::Result<Pid> {
    let mut shared = Shared { prepare, image, mask, ignores_pipe, errno: 0 };
    let stack = Stack::new(image)?;
    let mut all = MaybeUninit::<Mask>::uninit();
    let mut before = MaybeUninit::<Mask>::uninit();
    // SAFETY: sigfillset initialises the set that is read next, and the first pthread_sigmask the one that
    // the last one reads. The new process has a stack of its own, which is there until it has executed the
    // image or ended, because this thread is paused until then (CLONE_VFORK); so is `shared`. No signal
    // runs a handler in it: all are blocked until it has none.
    let cloned = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let cloned = libc::clone(
            in_child::<F>,
            stack.top(),
            libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
            (&raw mut shared).cast(),
        );
        let failed = io::Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        if cloned < 0 { Err(failed) } else { Ok(cloned) }
    };
    let pid = Pid::from_raw(cloned?).ok_or_else(|| io::Error::other("no number"))?;
    // SAFETY: a plain number on this stack, which the other process may have written to.
    match unsafe { (&raw const shared.errno).read_volatile() } {
        0 => Ok(pid),
        errno => {
            let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
            Err(io::Error::from_raw_os_error(errno))
        }
    }
}

#[expect(unsafe_code, reason = "as `start`")]
extern "C" fn in_child<F: Fn() -> Result<(), Errno>>(shared: *mut libc::c_void) -> libc::c_int {
    // SAFETY: what `start` has put on its stack and does not touch until this process has executed its
    // image or ended.
    let shared = unsafe { &mut *shared.cast::<Shared<'_, F>>() };
    shared.errno = match (shared.prepare)() {
        // SAFETY: both arrays and what they point to live in `start`.
        Ok(()) => unsafe { execute(shared.image, shared.mask, shared.ignores_pipe) },
        Err(errno) => errno.raw_os_error(),
    };
    // SAFETY: ends this process alone, without what the other one wants done at its end.
    unsafe { libc::_exit(127) }
}

/// Executes the image; returns only if that fails, and why.
#[expect(unsafe_code, reason = "as `start`")]
unsafe fn execute(image: &Image, mask: &Mask, ignores_pipe: bool) -> i32 {
    // SAFETY: no handler is set; every pointer is valid for its call.
    unsafe {
        // Else one of them would run here, in latchwork's memory, for a signal to this process.
        for signal in handled().filter(|&signal| !is_ignored(signal)) {
            libc::signal(signal.as_raw(), libc::SIG_DFL);
        }
        if file_size_ends() {
            libc::signal(libc::SIGXFSZ, libc::SIG_DFL);
        }
        libc::signal(libc::SIGPIPE, if ignores_pipe { libc::SIG_IGN } else { libc::SIG_DFL });
        libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut());
        libc::execvpe(
            image.words.pointers[0],
            image.words.pointers.as_ptr(),
            image.environment.pointers.as_ptr(),
        );
    }
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// A stack for the process that shares this one's memory.
struct Stack {
    bottom: *mut libc::c_void,
    length: usize,
}

impl Stack {
    /// Enough for a few calls, and for what the C library puts there: each path that it tries, and the
    /// words once more for a script that does not name its interpreter.
    fn new(image: &Image) -> io::Result<Self> {
        const CALLS: usize = 64 * 1024;
        let words = std::mem::size_of_val(&image.words.pointers[..]);
        let length = (CALLS + image.longest_path + words).next_multiple_of(CALLS);
        #[expect(unsafe_code, reason = "memory that no allocator knows")]
        // SAFETY: a new mapping at an address that the kernel chooses.
        let bottom = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::STACK,
            )?
        };
        Ok(Self { bottom, length })
    }

    /// Where it begins: it grows downwards.
    fn top(&self) -> *mut libc::c_void {
        self.bottom.wrapping_byte_add(self.length)
    }
}

impl Drop for Stack {
    #[expect(unsafe_code, reason = "as it was made")]
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and the process that used it shares this memory no longer.
        let _ = unsafe { munmap(self.bottom, self.length) };
    }
}
