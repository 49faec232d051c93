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
}
