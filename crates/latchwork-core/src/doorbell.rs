//! Blocked threads that a store wakes directly.
//!
//! A wake-up for a task takes two steps: the store wakes Latchwork's own thread, and that one wakes
//! the thread that the task runs on. Each step costs what it costs to bring an idle processor back.
//! A thread that blocks until it has the lock can do without the first: it listens at the store's
//! door itself.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll};

use crate::fork::Origin;

/// Runs a future on this thread until it ends, listening at `bell` meanwhile if there is one.
///
/// It is what the blocking API waits with. Do not call it from async code: it blocks the thread.
pub fn block_on<F: Future>(bell: Option<&Doorbell>, future: F) -> F::Output {
    let mut future = pin!(future);
    let mut bell = bell;
    loop {
        let origin = Origin::here();
        let parker = imp::Parker::of_this_thread();
        let waker = parker.waker();
        let mut cx = Context::from_waker(&waker);
        // Whoever cannot listen must not say so, or nobody would.
        bell = bell.filter(|_| parker.can_listen());
        let _attending = bell.map(imp::attend);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                return output;
            }
            if !origin.is_here() {
                // The future forked this process. What wakes the parent is the parent's.
                bell = None;
                break;
            }
            parker.park(bell);
        }
    }
}

/// A descriptor by which a store calls this process, and what to do when it rings.
///
/// A backend that has one offers it among its capabilities and reads it itself only while somebody
/// waits who does not [attend](Doorbell::is_attended) to it.
#[derive(Clone)]
pub struct Doorbell(imp::Bell);

impl fmt::Debug for Doorbell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doorbell").finish_non_exhaustive()
    }
}

impl PartialEq for Doorbell {
    fn eq(&self, other: &Self) -> bool {
        self.0.address() == other.0.address()
    }
}

impl Eq for Doorbell {}

#[cfg(target_os = "linux")]
mod imp {
    use std::cell::Cell;
    use std::ops::Deref;
    use std::os::fd::OwnedFd;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Wake, Waker};
    use std::thread::Thread;

    use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

    use super::Doorbell;
    use crate::fork::Origin;

    #[derive(Clone)]
    pub(super) struct Bell {
        fd: Arc<OwnedFd>,
        answer: Arc<dyn Fn() + Send + Sync>,
    }

    impl Bell {
        pub(super) fn address(&self) -> usize {
            Arc::as_ptr(&self.fd).addr()
        }
    }

    impl Doorbell {
        /// A bell that rings when `fd` is readable; `answer` reads it without blocking and passes
        /// on what it reads.
        pub fn new(fd: Arc<OwnedFd>, answer: impl Fn() + Send + Sync + 'static) -> Self {
            Self(Bell { fd, answer: Arc::new(answer) })
        }

        /// Whether the thread that asks will hear this bell by itself.
        pub fn is_attended(&self) -> bool {
            ATTENDED.get() == self.0.address()
        }
    }

    thread_local! {
        static ATTENDED: Cell<usize> = const { Cell::new(0) };
        /// The parker of this thread while nobody uses it: one that blocks inside another has its
        /// own, or it would take the other's wake-ups.
        static SPARE: Cell<Option<Arc<Parker>>> = const { Cell::new(None) };
    }

    /// While it lives, this thread attends to a bell.
    pub(super) struct Attending(usize);

    pub(super) fn attend(bell: &Doorbell) -> Attending {
        Attending(ATTENDED.replace(bell.0.address()))
    }

    impl Drop for Attending {
        fn drop(&mut self) {
            ATTENDED.set(self.0);
        }
    }

    pub(super) struct Parker {
        thread: Thread,
        event: Option<OwnedFd>,
        woken: AtomicBool,
        /// It sleeps at a bell, not in `park`.
        listening: AtomicBool,
        /// A child shares the descriptor: it would take the wake-ups of its parent's thread.
        origin: Origin,
    }

    /// The parker of this thread, given back when dropped.
    pub(super) struct Borrowed(Arc<Parker>);

    impl Borrowed {
        pub(super) fn waker(&self) -> Waker {
            self.0.clone().into()
        }
    }

    impl Deref for Borrowed {
        type Target = Parker;

        fn deref(&self) -> &Parker {
            &self.0
        }
    }

    impl Drop for Borrowed {
        fn drop(&mut self) {
            SPARE.set(Some(self.0.clone()));
        }
    }

    impl Parker {
        pub(super) fn of_this_thread() -> Borrowed {
            let spare = SPARE.take().filter(|parker| parker.origin.is_here());
            Borrowed(spare.unwrap_or_else(|| {
                Arc::new(Parker {
                    thread: std::thread::current(),
                    // Without a descriptor the thread is woken by Latchwork's own one, as any other.
                    event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok(),
                    woken: AtomicBool::new(false),
                    listening: AtomicBool::new(false),
                    origin: Origin::here(),
                })
            }))
        }

        /// Whether there was a descriptor left to sleep at a bell with.
        pub(super) fn can_listen(&self) -> bool {
            self.event.is_some()
        }

        /// Sleeps until the waker was called or the bell has rung; may return early.
        pub(super) fn park(&self, bell: Option<&Doorbell>) {
            let (Some(event), Some(Doorbell(bell))) = (&self.event, bell) else {
                return std::thread::park();
            };
            // Said before looking: whoever wakes either sees it or is seen.
            self.listening.store(true, Ordering::SeqCst);
            let rung = !self.woken.load(Ordering::SeqCst) && listen(event, &bell.fd);
            self.listening.store(false, Ordering::SeqCst);
            if rung {
                (bell.answer)();
            }
            // Taken, not overwritten: what was done before the call is seen by the poll after it.
            self.woken.swap(false, Ordering::SeqCst);
        }
    }

    /// Sleeps until there is a wake-up or the bell has rung; tells whether it has.
    fn listen(event: &OwnedFd, bell: &OwnedFd) -> bool {
        let mut fds = [PollFd::new(event, PollFlags::IN), PollFd::new(bell, PollFlags::IN)];
        // An interrupted sleep is an early look, which is free.
        if poll(&mut fds, None).is_err() {
            return false;
        }
        let [woken, rung] = fds.map(|fd| !fd.revents().is_empty());
        if woken {
            let _ = rustix::io::read(event, &mut [0u8; 8]);
        }
        rung
    }

    impl Wake for Parker {
        fn wake(self: Arc<Self>) {
            self.wake_by_ref();
        }

        fn wake_by_ref(self: &Arc<Self>) {
            self.woken.store(true, Ordering::SeqCst);
            match &self.event {
                Some(event) if self.listening.load(Ordering::SeqCst) => {
                    // It fails only when the count is full, and then the thread wakes anyway.
                    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
                }
                _ => self.thread.unpark(),
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::task::Wake;
    use std::thread::Thread;

    use super::Doorbell;

    /// There are no bells on this system.
    #[derive(Clone)]
    pub(super) struct Bell(Infallible);

    impl Bell {
        pub(super) fn address(&self) -> usize {
            match self.0 {}
        }
    }

    pub(super) fn attend(bell: &Doorbell) {
        match (bell.0).0 {}
    }

    pub(super) struct Parker(Thread);

    impl Parker {
        pub(super) fn of_this_thread() -> Arc<Self> {
            Arc::new(Self(std::thread::current()))
        }

        pub(super) fn waker(self: &Arc<Self>) -> std::task::Waker {
            self.clone().into()
        }

        pub(super) fn can_listen(&self) -> bool {
            false
        }

        pub(super) fn park(&self, _: Option<&Doorbell>) {
            std::thread::park();
        }
    }

    impl Wake for Parker {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "tests start threads")]

    use std::future::poll_fn;
    use std::os::fd::OwnedFd;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, Mutex};
    use std::task::Waker;
    use std::thread;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    fn bell(fd: &Arc<OwnedFd>, rung: &Arc<AtomicU32>) -> Doorbell {
        let (door, rung) = (fd.clone(), rung.clone());
        Doorbell::new(fd.clone(), move || {
            if rustix::io::read(&door, &mut [0u8; 8]).is_ok() {
                rung.fetch_add(1, Ordering::SeqCst);
            }
        })
    }

    #[test]
    fn a_blocked_thread_hears_its_bell_and_its_waker() {
        let fd = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap());
        let rung = Arc::new(AtomicU32::new(0));
        let bell = bell(&fd, &rung);
        assert!(!bell.is_attended());
        for by_waker in [false, true].repeat(200) {
            let waker: Arc<Mutex<Option<Waker>>> = Arc::default();
            let (seen, door, before) = (waker.clone(), fd.clone(), rung.load(Ordering::SeqCst));
            let caller = thread::spawn(move || {
                loop {
                    if let Some(waker) = seen.lock().unwrap().take() {
                        if by_waker {
                            waker.wake();
                        } else {
                            rustix::io::write(&door, &1u64.to_ne_bytes()).unwrap();
                        }
                        return;
                    }
                    thread::yield_now();
                }
            });
            let mut polls = 0;
            block_on(
                Some(&bell),
                poll_fn(|cx| {
                    assert!(bell.is_attended());
                    polls += 1;
                    if polls == 1 {
                        *waker.lock().unwrap() = Some(cx.waker().clone());
                        return Poll::Pending;
                    }
                    // Nothing else wakes it, so a second poll proves the wake-up.
                    Poll::Ready(())
                }),
            );
            caller.join().unwrap();
            let heard = rung.load(Ordering::SeqCst) - before;
            assert!(if by_waker { heard == 0 } else { heard <= 1 });
        }
        assert!(rung.load(Ordering::SeqCst) > 100);
        assert!(!bell.is_attended());
    }

    #[test]
    fn without_a_bell_it_waits_for_the_waker() {
        assert_eq!(block_on(None, async { 7 }), 7);
        let (sender, receiver) = tokio::sync::oneshot::channel();
        thread::spawn(move || sender.send(8).unwrap());
        assert_eq!(block_on(None, receiver).unwrap(), 8);
    }
}
