//! Descriptors by which a store notifies a thread that is blocked.
//!
//! A wake-up for a task takes two steps: the store wakes Latchwork's own thread, and that one wakes
//! the thread that the task runs on. Each step costs what it costs to bring an idle processor back.
//! A thread that blocks until it has the lock can do without the first: it listens at the store's
//! door itself.

use std::fmt;

/// A descriptor that becomes readable when a store notifies this process, and its handler.
///
/// A backend that has one returns it from [`Backend::doorbell`](crate::Backend::doorbell), and
/// reads it itself only while a waiter's thread does not [listen](Doorbell::is_attended) to it.
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
        /// Creates a bell that rings when `fd` is readable; `answer` reads it without blocking and
        /// passes on what it reads.
        pub fn new(fd: Arc<OwnedFd>, answer: impl Fn() + Send + Sync + 'static) -> Self {
            Self(Bell { fd, answer: Arc::new(answer) })
        }

        /// Returns whether the calling thread listens to this bell.
        pub fn is_attended(&self) -> bool {
            ATTENDED.get() == self.address()
        }

        /// Makes this thread listen to the bell until the returned value is dropped.
        pub fn attend(&self) -> Attending {
            Attending { before: ATTENDED.replace(self.address()), here: PhantomData }
        }

        /// Runs the handler after the bell has rung.
        pub fn answer(&self) {
            (self.0.answer)();
        }

        /// Returns whether both are one bell.
        pub fn is(&self, other: &Self) -> bool {
            self.address() == other.address()
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

    /// Makes its thread listen to a bell while the value lives.
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
        /// Returns whether the calling thread listens to this bell.
        pub fn is_attended(&self) -> bool {
            match self.0.0 {}
        }
    }
}
