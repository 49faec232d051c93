//! Descriptors that a forked child does not keep open.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Once};

use latchwork_store::Origin;

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
fn knows(fd: RawFd) -> bool {
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
    static HANDLED: Once = Once::new();
    HANDLED.call_once(|| {
        #[expect(unsafe_code, reason = "there is no safe way to act in a forked child")]
        // SAFETY: the handler only uses atomics and makes system calls that are safe in a signal
        // handler, and so in the child of a process with many threads.
        let handled = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        debug_assert_eq!(handled, 0, "no memory for a handler");
    });
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
extern "C" fn in_child() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_that_is_closed_leaves_its_slot() {
        let fd: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        let number = fd.as_raw_fd();
        let kept = CloseOnFork::new(fd);
        assert!(kept.fd().as_raw_fd() == number && knows(number));
        drop(kept);
        assert!(!knows(number));
    }
}
