//! Detects forks: values of one process are not used in a child that was forked from it.
//!
//! A fork copies memory and shares descriptors. The child has the manager, but not the thread that
//! renews; it has the sockets, but a request of its own takes the place of one of its parent's; it
//! has every mutex as it was, also one that another thread had locked. So everything that a user
//! holds remembers its [`Origin`] and asks it before it takes a lock or touches the store.
//!
//! An origin is a number in a page that the kernel empties in each child (`MADV_WIPEONFORK`), however
//! the child was made; where there is no such page, a handler of `pthread_atfork` empties it. `vfork`
//! and `posix_spawn` share the parent's memory until they execute another program, and change nothing.

#[cfg(target_os = "linux")]
pub use close::CloseOnFork;

/// The process in which a value was made.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    mark: &'static imp::Mark,
    name: u64,
}

impl Origin {
    /// Returns this process.
    pub fn here() -> Self {
        let mark = imp::mark();
        Self { mark, name: imp::name(mark) }
    }

    /// Returns whether the caller is still in the same process, and not in a child that was forked
    /// from it. Costs one atomic load.
    #[inline]
    pub fn is_here(self) -> bool {
        imp::read(self.mark) == self.name
    }
}

#[cfg(unix)]
mod imp {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Zero until this process has asked for its name.
    pub(super) type Mark = AtomicU64;

    static MARK: OnceLock<&'static Mark> = OnceLock::new();
    /// The mark where the kernel empties no pages.
    static PLAIN: Mark = AtomicU64::new(0);
    /// The last name that was given, in this process or one that it was forked from.
    static LAST: AtomicU64 = AtomicU64::new(0);

    pub(super) fn mark() -> &'static Mark {
        MARK.get_or_init(|| {
            #[expect(unsafe_code, reason = "there is no safe way to detect a fork")]
            // SAFETY: the handler only stores to atomics and makes system calls that are safe in
            // a signal handler, and so in the child of a process with many threads.
            let handled = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            debug_assert_eq!(handled, 0, "no memory for a handler");
            wiped().unwrap_or(&PLAIN)
        })
    }

    #[inline]
    pub(super) fn read(mark: &Mark) -> u64 {
        mark.load(Ordering::Relaxed)
    }

    pub(super) fn name(mark: &Mark) -> u64 {
        match mark.load(Ordering::Acquire) {
            0 => {
                let fresh = LAST.fetch_add(1, Ordering::Relaxed) + 1;
                match mark.compare_exchange(0, fresh, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => fresh,
                    Err(other_thread) => other_thread,
                }
            }
            name => name,
        }
    }

    extern "C" fn in_child() {
        if let Some(mark) = MARK.get() {
            mark.store(0, Ordering::Release);
        }
        #[cfg(target_os = "linux")]
        super::close::in_child();
    }

    /// A mark in a page that is empty in every child.
    #[cfg(target_os = "linux")]
    fn wiped() -> Option<&'static Mark> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        let length = rustix::param::page_size();
        #[expect(unsafe_code, reason = "a page of its own, which the kernel empties in a child")]
        // SAFETY: a new mapping at an address that the kernel chooses; it is never unmapped, zeroed
        // memory is a valid atomic, and a page is aligned well enough for it.
        unsafe {
            let page = mmap_anonymous(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
            .ok()?;
            madvise(page, length, Advice::LinuxWipeOnFork).ok()?;
            page.cast::<Mark>().as_ref()
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn wiped() -> Option<&'static Mark> {
        None
    }
}

#[cfg(not(unix))]
mod imp {
    //! There is no fork on this system.

    #[derive(Debug)]
    pub(super) struct Mark;

    pub(super) fn mark() -> &'static Mark {
        &Mark
    }

    pub(super) fn read(_: &Mark) -> u64 {
        1
    }

    pub(super) fn name(_: &Mark) -> u64 {
        1
    }
}

#[cfg(target_os = "linux")]
mod close {
    use std::fmt;
    use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI32, Ordering};

    use super::Origin;

    /// More descriptors than that stay open in a child.
    const MOST: usize = 1_024;
    const NONE: RawFd = -1;

    static OPEN: [AtomicI32; MOST] = [const { AtomicI32::new(NONE) }; MOST];
    /// What a child has in their place: a number that stays taken cannot become another file's.
    static NULL: AtomicI32 = AtomicI32::new(NONE);

    /// A descriptor that a forked child does not keep open: in the child, its number leads to
    /// `/dev/null`.
    ///
    /// Use it for a descriptor that tells others, by being open, that the process is alive or holds
    /// a lock. A child made without the C library's `fork` keeps it.
    pub struct CloseOnFork {
        fd: Arc<OwnedFd>,
        slot: Option<&'static AtomicI32>,
        origin: Origin,
    }

    impl CloseOnFork {
        /// Closes `fd` in forked children from now on.
        pub fn new(fd: impl Into<Arc<OwnedFd>>) -> Self {
            let (fd, origin) = (fd.into(), Origin::here());
            let slot = prepare().then(|| enlist(fd.as_raw_fd())).flatten();
            Self { fd, slot, origin }
        }

        /// Returns the descriptor. A clone that is kept for longer keeps it open, and a child that
        /// is forked after this value was dropped has it too.
        pub fn fd(&self) -> &Arc<OwnedFd> {
            &self.fd
        }
    }

    impl AsFd for CloseOnFork {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.fd.as_fd()
        }
    }

    impl Drop for CloseOnFork {
        fn drop(&mut self) {
            // Before it is closed, or a child would lose what gets its number next. A child has
            // given up the slot already.
            if let Some(slot) = self.slot
                && self.origin.is_here()
            {
                slot.store(NONE, Ordering::Release);
            }
        }
    }

    impl fmt::Debug for CloseOnFork {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.fd.fmt(f)
        }
    }

    #[cfg(test)]
    pub(super) fn knows(fd: RawFd) -> bool {
        OPEN.iter().any(|slot| slot.load(Ordering::Acquire) == fd)
    }

    fn enlist(fd: RawFd) -> Option<&'static AtomicI32> {
        let take = |slot: &&AtomicI32| {
            slot.compare_exchange(NONE, fd, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        OPEN.iter().find(take)
    }

    /// Whether there is something to put in the place of a descriptor.
    fn prepare() -> bool {
        if NULL.load(Ordering::Acquire) != NONE {
            return true;
        }
        let Ok(null) = std::fs::File::open("/dev/null") else { return false };
        let null = OwnedFd::from(null).into_raw_fd();
        if NULL.compare_exchange(NONE, null, Ordering::AcqRel, Ordering::Acquire).is_err() {
            #[expect(unsafe_code, reason = "another thread was quicker")]
            // SAFETY: it was opened above and given to nobody.
            drop(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(null) });
        }
        true
    }

    /// Closes what this process must not keep. Runs right after a fork, where only atomics and
    /// system calls are allowed.
    pub(super) fn in_child() {
        let null = NULL.load(Ordering::Acquire);
        if null == NONE {
            return;
        }
        for slot in &OPEN {
            let fd = slot.swap(NONE, Ordering::AcqRel);
            if fd != NONE {
                #[expect(unsafe_code, reason = "owned descriptors of the parent, by number")]
                // SAFETY: both are open: a slot is emptied before its descriptor is closed, and the
                // other is never closed. Their owners in this process keep a valid number.
                unsafe {
                    libc::dup3(null, fd, libc::O_CLOEXEC);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_values_of_a_process_have_one_origin() {
        let threads = (0..8).map(|_| {
            #[allow(clippy::disallowed_methods, reason = "tests start threads")]
            std::thread::spawn(Origin::here)
        });
        let first = Origin::here();
        for thread in threads.collect::<Vec<_>>() {
            assert_eq!(thread.join().unwrap().name, first.name);
        }
        assert!(first.is_here());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_descriptor_that_is_closed_leaves_its_slot() {
        use std::os::fd::{AsRawFd, OwnedFd};
        let fd: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        let number = fd.as_raw_fd();
        let kept = CloseOnFork::new(fd);
        assert!(kept.fd().as_raw_fd() == number && close::knows(number));
        drop(kept);
        assert!(!close::knows(number));
    }
}
