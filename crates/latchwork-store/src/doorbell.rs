//! Where a store rings for a thread that is blocked.
//!
//! A wake-up for a task takes two steps: the store wakes Latchwork's own thread, and that one wakes
//! the thread that the task runs on. Each step costs what it costs to bring an idle processor back.
//! A thread that blocks until it has the lock can do without the first: it listens at the store's
//! door itself.

use std::fmt;

/// A descriptor by which a store calls this process, and what to do when it rings.
///
/// A backend that has one says so ([`Backend::doorbell`](crate::Backend::doorbell)), and reads it
/// itself only while somebody waits who does not [attend](Doorbell::is_attended) to it.
#[derive(Clone)]
pub struct Doorbell(imp::Bell);

impl fmt::Debug for Doorbell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doorbell").finish_non_exhaustive()
    }
}

#[cfg(target_os = "linux")]
pub use imp::Attending;

#[cfg(target_os = "linux")]
mod imp {
    use std::cell::Cell;
    use std::marker::PhantomData;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::sync::Arc;

    use super::Doorbell;

    #[derive(Clone)]
    pub(super) struct Bell {
        fd: Arc<OwnedFd>,
        answer: Arc<dyn Fn() + Send + Sync>,
    }

    thread_local! {
        static ATTENDED: Cell<usize> = const { Cell::new(0) };
    }

    impl Doorbell {
        /// A bell that rings when `fd` is readable; `answer` reads it without blocking and passes
        /// on what it reads.
        pub fn new(fd: Arc<OwnedFd>, answer: impl Fn() + Send + Sync + 'static) -> Self {
            Self(Bell { fd, answer: Arc::new(answer) })
        }

        /// Whether the thread that asks will hear this bell by itself.
        pub fn is_attended(&self) -> bool {
            ATTENDED.get() == self.address()
        }

        /// This thread listens at the bell from now on, until what is returned is dropped.
        pub fn attend(&self) -> Attending {
            Attending { before: ATTENDED.replace(self.address()), here: PhantomData }
        }

        /// Does what is to be done when it has rung.
        pub fn answer(&self) {
            (self.0.answer)();
        }

        fn address(&self) -> usize {
            Arc::as_ptr(&self.0.fd).addr()
        }
    }

    impl AsFd for Doorbell {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.fd.as_fd()
        }
    }

    /// While it lives, its thread attends to a bell.
    #[derive(Debug)]
    #[must_use = "the thread attends to the bell until this is dropped"]
    pub struct Attending {
        before: usize,
        /// It belongs to its thread.
        here: PhantomData<*const ()>,
    }

    impl Drop for Attending {
        fn drop(&mut self) {
            ATTENDED.set(self.before);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    /// There are no bells on this system.
    #[derive(Clone)]
    pub(super) struct Bell(std::convert::Infallible);

    impl super::Doorbell {
        /// Whether the thread that asks will hear this bell by itself.
        pub fn is_attended(&self) -> bool {
            match self.0.0 {}
        }
    }
}
