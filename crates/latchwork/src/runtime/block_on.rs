//! Blocks a thread on a future, and lets it receive the store's notifications directly.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use latchwork_store::clock::boot_time;
use latchwork_store::{Doorbell, Origin};
use latchwork_wire::EventLoop;

/// Blocks this thread until the future ends: the API for programs without async code.
///
/// Renewal and releases in the background run on Latchwork's own threads either way, and no runtime
/// is needed. While an acquire waits, this thread listens at the store's door itself where the store
/// has one, so that it is woken by nobody in between.
///
/// Do not call it from async code: it blocks the thread. A runtime that the thread has entered is not used, so it
/// need not be driven.
///
/// # Examples
///
/// ```
/// use latchwork::block_on;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = block_on(latchwork::connect("mem:"))?;
/// let guard = block_on(locks.mutex("nightly").acquire())?;
/// guard.ensure_held()?;
/// block_on(guard.release())?;
/// # Ok(())
/// # }
/// ```
pub fn block_on<F: Future>(future: F) -> F::Output {
    match blocked(None, || Ok::<(), Infallible>(()), future) {
        Ok(output) => output,
        Err(never) => match never {},
    }
}

fn blocked<F: Future, E>(
    every: Option<Duration>,
    mut check: impl FnMut() -> Result<(), E>,
    future: F,
) -> Result<F::Output, E> {
    let mut future = pin!(future);
    // The next check is due then, however often the future is woken in between.
    let mut due = every.map(|every| boot_time().plus(every));
    loop {
        let origin = Origin::here();
        let parker = imp::Parker::of_this_thread();
        let waker = parker.waker();
        let mut cx = Context::from_waker(&waker);
        loop {
            // The polled future offers its bell again, if it waits at one.
            let visit = imp::Visit::begin(parker.can_listen());
            let left = EventLoop::leave();
            let polled = future.as_mut().poll(&mut cx);
            drop(left);
            if let Poll::Ready(output) = polled {
                return Ok(output);
            }
            if !origin.is_here() {
                // The future forked this process. What wakes the parent is the parent's.
                break;
            }
            let Some(every) = every else {
                parker.park(visit.bell().as_ref());
                continue;
            };
            let woken = parker.park_for(visit.bell().as_ref(), every);
            // The check may block on another future, which has a visit of its own.
            drop(visit);
            if !woken || due.is_some_and(|due| due <= boot_time()) {
                check()?;
                due = Some(boot_time().plus(every));
            }
        }
    }
}

/// Adds [`block_on`] as a method at the end of a call.
///
/// # Examples
///
/// ```
/// use latchwork::BlockOn;
///
/// # fn main() -> Result<(), latchwork::Error> {
/// let locks = latchwork::connect("mem:").block_on()?;
/// locks.mutex("nightly").acquire().block_on()?.release().block_on()?;
/// # Ok(())
/// # }
/// ```
pub trait BlockOn: Future + Sized {
    /// Runs the future on this thread until it ends, as [`block_on`] does.
    fn block_on(self) -> Self::Output {
        block_on(self)
    }

    /// Blocks this thread until the future ends or `check` fails: [`block_on`](BlockOn::block_on) for
    /// a language whose runtime has signals to handle.
    ///
    /// While the thread waits, `check` is called whenever a signal handler has interrupted the wait, and
    /// at least once in `every`. If it fails, the future is dropped, and its error is returned. `check`
    /// may block, and may call `block_on` itself.
    ///
    /// # Errors
    ///
    /// Those of `check`.
    ///
    /// # Cancel safety
    ///
    /// If `check` fails, the future is dropped: an acquire leaves no claim behind, and a release
    /// continues in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use latchwork::BlockOn;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = latchwork::connect("mem:").block_on()?;
    /// let _held = locks.mutex("nightly").acquire().block_on()?;
    /// let start = Instant::now();
    /// let give_up = || if start.elapsed().as_millis() > 50 { Err("interrupted") } else { Ok(()) };
    /// let lock = locks.mutex("nightly");
    /// let tick = Duration::from_millis(20);
    /// let ended = lock.acquire().block_on_interruptible(tick, give_up);
    /// assert_eq!(ended.unwrap_err(), "interrupted");
    /// # Ok(())
    /// # }
    /// ```
    fn block_on_interruptible<E>(
        self,
        every: Duration,
        check: impl FnMut() -> Result<(), E>,
    ) -> Result<Self::Output, E> {
        blocked(Some(every), check, self)
    }
}

impl<F: Future> BlockOn for F {}

/// The same future, which says at each poll that it waits at this bell, if it is polled by
/// [`block_on`].
#[cfg_attr(not(target_os = "linux"), expect(unused_variables, reason = "there are no bells"))]
pub(crate) async fn listening<F: Future>(bell: Option<&Doorbell>, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        #[cfg(target_os = "linux")]
        if let Some(bell) = bell {
            latchwork_wire::Visit::offer(bell);
        }
        future.as_mut().poll(cx)
    })
    .await
}

#[cfg(target_os = "linux")]
mod imp {
    use std::cell::Cell;
    use std::ops::{Deref, RangeInclusive};
    use std::os::fd::OwnedFd;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::task::{Wake, Waker};
    use std::thread::Thread;
    use std::time::Duration;

    use latchwork_store::clock::boot_time;
    use latchwork_store::{Doorbell, Origin};
    pub(super) use latchwork_wire::Visit;
    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

    thread_local! {
        /// The parker of this thread while nobody uses it: one that blocks inside another has its
        /// own, or it would take the other's wake-ups.
        static SPARE: Cell<Option<Arc<Parker>>> = const { Cell::new(None) };
    }

    pub(super) struct Parker {
        thread: Thread,
        event: Option<OwnedFd>,
        woken: AtomicBool,
        /// It sleeps at a bell, not in `park`.
        listening: AtomicBool,
        pace: Pace,
        /// A child shares the descriptor: it would take the wake-ups of its parent's thread.
        origin: Origin,
    }

    /// The parker of this thread, returned when dropped.
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
                    pace: Pace::default(),
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
            let (Some(event), Some(bell)) = (&self.event, bell) else {
                return std::thread::park();
            };
            self.sleep(event, Some(bell), None);
        }

        /// As [`park`](Parker::park), for so long at the most; tells whether it was woken, and not
        /// interrupted by a signal or by the end of the time.
        pub(super) fn park_for(&self, bell: Option<&Doorbell>, longest: Duration) -> bool {
            match &self.event {
                Some(event) => self.sleep(event, bell, Some(longest)),
                None => {
                    std::thread::park_timeout(longest);
                    self.woken.swap(false, Ordering::SeqCst)
                }
            }
        }

        fn sleep(
            &self,
            event: &OwnedFd,
            bell: Option<&Doorbell>,
            longest: Option<Duration>,
        ) -> bool {
            // Said before looking: a waker either sees it or is seen.
            self.listening.store(true, Ordering::SeqCst);
            let rung =
                !self.woken.load(Ordering::SeqCst) && listen(event, bell, longest, &self.pace);
            self.listening.store(false, Ordering::SeqCst);
            if let Some(bell) = bell.filter(|_| rung) {
                bell.answer();
            }
            // Taken, not overwritten: what was done before the call is seen by the poll after it.
            self.woken.swap(false, Ordering::SeqCst) || rung
        }
    }

    /// Whether a thread checks its bell again and again before it sleeps. A processor that has to be woken, as in a
    /// virtual machine, can cost more than the answer of a server beside it. Both ways are measured, in microseconds.
    #[derive(Default)]
    pub(super) struct Pace {
        of_sleeps: AtomicU32,
        of_checks: AtomicU32,
        waits: AtomicU32,
    }

    /// If an answer takes so long, the thread may check for it. A server on the same processor answers sooner, and needs
    /// the processor; one that is farther away answers later.
    const SHORT: RangeInclusive<u32> = 25..=120;
    /// Once in so many waits the other way is measured.
    const TRIAL: u32 = 32;

    impl Pace {
        pub(super) fn checks(&self) -> bool {
            let trial = self.waits.fetch_add(1, Ordering::Relaxed) % TRIAL == TRIAL - 1;
            let slept = self.of_sleeps.load(Ordering::Relaxed);
            SHORT.contains(&slept) && (self.of_checks.load(Ordering::Relaxed) < slept) != trial
        }

        pub(super) fn slept(&self, time: Duration) {
            took(&self.of_sleeps, time);
        }

        pub(super) fn checked(&self, time: Duration) {
            took(&self.of_checks, time);
        }
    }

    /// Keeps an average, in which a long wait counts as four times the longest.
    fn took(average: &AtomicU32, time: Duration) {
        let time = time.as_micros().min(u128::from(SHORT.end() * 4)) as u32;
        let old = average.load(Ordering::Relaxed);
        average.store(if old == 0 { time } else { (old * 3 + time) / 4 }, Ordering::Relaxed);
    }

    /// Sleeps until there is a wake-up or the bell has rung; tells whether it has.
    pub(super) fn listen(
        event: &OwnedFd,
        bell: Option<&Doorbell>,
        longest: Option<Duration>,
        pace: &Pace,
    ) -> bool {
        let woken = PollFd::new(event, PollFlags::IN);
        let Some(bell) = bell else {
            looked(event, &mut [woken], longest);
            return false;
        };
        let fds = &mut [woken, PollFd::new(bell, PollFlags::IN)];
        let begin = boot_time();
        if pace.checks() {
            let longest = Duration::from_micros((*SHORT.end()).into());
            let seen = loop {
                let seen = looked(event, fds, Some(Duration::ZERO));
                if seen || boot_time().since(begin) > longest {
                    break seen;
                }
            };
            pace.checked(if seen { boot_time().since(begin) } else { longest * 2 });
            if seen {
                return !fds[1].revents().is_empty();
            }
        }
        let seen = looked(event, fds, longest);
        pace.slept(boot_time().since(begin));
        seen && !fds[1].revents().is_empty()
    }

    /// Sleeps until one of these has something, and takes the wake-up.
    fn looked(event: &OwnedFd, fds: &mut [PollFd<'_>], longest: Option<Duration>) -> bool {
        let longest = longest.map(|it| Timespec {
            tv_sec: it.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: it.subsec_nanos().into(),
        });
        // An interrupted sleep is an early look, which is free.
        let seen = poll(fds, longest.as_ref()).is_ok_and(|count| count > 0);
        if seen && !fds[0].revents().is_empty() {
            let _ = rustix::io::read(event, &mut [0u8; 8]);
        }
        seen
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
    use std::sync::Arc;
    use std::task::Wake;
    use std::thread::Thread;
    use std::time::Duration;

    use latchwork_store::Doorbell;

    pub(super) struct Visit;

    impl Visit {
        pub(super) fn begin(_: bool) -> Self {
            Self
        }

        pub(super) fn bell(&self) -> Option<Doorbell> {
            None
        }
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

        pub(super) fn park_for(&self, _: Option<&Doorbell>, longest: Duration) -> bool {
            std::thread::park_timeout(longest);
            false
        }
    }

    impl Wake for Parker {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
