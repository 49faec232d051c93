//! Descriptors by which a store notifies a thread that is blocked.
//!
//! A wake-up for a task takes two steps: the store wakes Latchwork's own thread, and that one wakes
//! the thread that the task runs on. Each step costs what it costs to bring an idle processor back.
//! A thread that blocks until it has the lock can do without the first: it listens at the store's
//! door itself. What the thread polls offers it a bell ([`Doorbell::offer`]); the engine, which blocks
//! the thread, makes it listen there ([`Visit`]).

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
pub use imp::{Attending, Visit};

#[cfg(target_os = "linux")]
mod imp {
    use std::cell::{Cell, RefCell};
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
        /// The visit that this thread is on, if it is on one.
        static VISIT: RefCell<Option<Listener>> = const { RefCell::new(None) };
    }

    /// At which bell this thread listens.
    struct Listener {
        can_listen: bool,
        at: Option<(Doorbell, Attending)>,
    }

    /// One poll of a future by a thread that blocks for it, and the sleep of the thread after it.
    #[derive(Debug)]
    #[must_use = "the thread can be offered bells until this is dropped"]
    pub struct Visit {
        /// That of a visit around this one.
        outer: Option<Listener>,
        /// It belongs to its thread.
        here: PhantomData<*const ()>,
    }

    impl Visit {
        /// Begins a visit: from now on a bell can be offered to this thread, if it can listen to
        /// one.
        pub fn begin(can_listen: bool) -> Self {
            let outer = VISIT.replace(Some(Listener { can_listen, at: None }));
            Self { outer, here: PhantomData }
        }

        /// Returns the bell that the thread has to listen to.
        pub fn bell(&self) -> Option<Doorbell> {
            VISIT.with_borrow(|visit| Some(visit.as_ref()?.at.as_ref()?.0.clone()))
        }
    }

    impl Drop for Visit {
        fn drop(&mut self) {
            let ended = VISIT.replace(self.outer.take());
            drop(ended);
        }
    }

    impl std::fmt::Debug for Listener {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("Listener").field("can_listen", &self.can_listen).finish_non_exhaustive()
        }
    }

    impl Doorbell {
        /// Creates a bell that rings when `fd` is readable; `answer` reads it without blocking and
        /// passes on what it reads.
        pub fn new(fd: Arc<OwnedFd>, answer: impl Fn() + Send + Sync + 'static) -> Self {
            Self(Bell { fd, answer: Arc::new(answer) })
        }

        /// Returns whether this thread polls a future on which it will block, and can listen to a
        /// bell.
        pub fn can_be_offered() -> bool {
            VISIT.with_borrow(|visit| visit.as_ref().is_some_and(|listener| listener.can_listen))
        }

        /// Offers the bell to this thread while it blocks, and returns whether it will listen to
        /// it. It will not if it listens to another one. A future has to offer its bell at each
        /// poll.
        pub fn offer(&self) -> bool {
            VISIT.with_borrow_mut(|visit| {
                // A thread that could not listen must not say so, or nobody would.
                let Some(listener) = visit.as_mut().filter(|it| it.can_listen) else {
                    return false;
                };
                let (bell, _) = listener.at.get_or_insert_with(|| (self.clone(), self.attend()));
                bell.address() == self.address()
            })
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
