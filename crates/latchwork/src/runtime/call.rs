//! A call of the user, from its first poll to its answer, and its fate if it is not polled.
//!
//! A future that nobody polls may have been given something: a hold that was handed to it, the lead
//! of its queue, a grant of the store. The next caller would wait for it for ever, since the watchdog
//! renews what was handed over. So the future lies in a `PinnedCall` that Latchwork's thread sees as well: one
//! that was woken and not polled for two seconds is taken away from the future, and dropped there.
//! That passes on what it had, exactly as if the user had dropped it. Polled again, the future
//! restarts, at the front of its queue.
//!
//! A release is not undone but carried out: Latchwork's thread polls it to its end.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use pin_project_lite::pin_project;
use tokio::sync::Notify;

use latchwork_store::{Io, Origin};

use crate::runtime::own::Forked;

/// How often calls that were woken are looked at.
const LOOK: Duration = Duration::from_millis(400);
/// How many looks find a call woken and not polled before it is taken away: 1.6 to 2.0 s, for the first look may be at once
/// or one pause later.
const LOOKS: u32 = 4;

/// How to handle a call that was woken and is not polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unpolled {
    /// It is dropped, and restarts when it is polled again.
    BeginsAnew,
    /// It goes on without the caller.
    GoesOn,
}

/// A call; [`Forked`] outside of the process that it belongs to.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Call<M, F: Future> {
    origin: Origin,
    calls: Arc<Calls>,
    unpolled: Unpolled,
    /// Makes the future; asked again with `true` after it was taken away.
    make: M,
    stage: Stage<F>,
}

enum Stage<F: Future> {
    New,
    /// The number is that in the list of those that are looked at.
    Started(Arc<PinnedCall<F>>, Option<u64>),
    Done,
}

impl<M, F> Call<M, F>
where
    M: FnMut(bool) -> F,
    F: Future<Output: Send> + Send + 'static,
{
    pub(crate) fn new(origin: Origin, calls: &Arc<Calls>, unpolled: Unpolled, make: M) -> Self {
        Self { origin, calls: calls.clone(), unpolled, make, stage: Stage::New }
    }
}

// The future itself lies in its pinned call; what is made of it moves freely.
impl<M, F: Future> Unpin for Call<M, F> {}

impl<M, F> Future for Call<M, F>
where
    M: FnMut(bool) -> F,
    F: Future<Output: Send> + Send + 'static,
{
    type Output = Result<F::Output, Forked>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if !this.origin.is_here() {
            return Poll::Ready(Err(Forked));
        }
        if let Stage::New = this.stage {
            let pinned = Arc::new(PinnedCall {
                content: Mutex::new(Content {
                    slot: Slot::Running { future: (this.make)(false) },
                    elsewhere: false,
                }),
                caller: AtomicWaker::new(),
                woken: AtomicU32::new(0),
                unpolled: this.unpolled,
                calls: this.calls.clone(),
            });
            this.stage = Stage::Started(pinned, None);
        }
        let Stage::Started(pinned, number) = &mut this.stage else {
            panic!("polled after it has ended")
        };
        match pinned.poll(cx, &mut this.make) {
            Poll::Ready(output) => {
                this.leave();
                Poll::Ready(Ok(output))
            }
            Poll::Pending => {
                // What ends at its first poll is never looked at.
                if number.is_none() {
                    *number = Some(this.calls.enlist(Arc::downgrade(pinned) as _));
                    // It may have been woken before it was on the list.
                    if pinned.woken.load(Ordering::SeqCst) != 0 {
                        this.calls.expect_a_poll();
                    }
                }
                Poll::Pending
            }
        }
    }
}

impl<M, F: Future> Call<M, F> {
    /// Gives the pinned call up. What runs there is dropped with it.
    fn leave(&mut self) {
        if let Stage::Started(pinned, number) = mem::replace(&mut self.stage, Stage::Done) {
            if let Some(number) = number {
                self.calls.delist(number);
            }
            let mut content = pinned.lock();
            // What goes on elsewhere does so to its end.
            if !content.elsewhere {
                pin_content(&mut content).project().slot.set(Slot::Over);
            }
        }
    }
}

impl<M, F: Future> Drop for Call<M, F> {
    fn drop(&mut self) {
        if self.origin.is_here() {
            self.leave();
        } else {
            mem::forget(mem::replace(&mut self.stage, Stage::Done));
        }
    }
}

/// Where a call runs.
struct PinnedCall<F: Future> {
    content: Mutex<Content<F>>,
    /// The caller to wake, with the future.
    caller: AtomicWaker,
    /// 0 since the last poll; after a wake-up one more than the looks that have seen it.
    woken: AtomicU32,
    unpolled: Unpolled,
    calls: Arc<Calls>,
}

pin_project! {
    /// The content of a pinned call.
    struct Content<F: Future> {
        #[pin]
        slot: Slot<F>,
        // It goes on without the caller, in a task of Latchwork's.
        elsewhere: bool,
    }
}

pin_project! {
    #[project = In]
    enum Slot<F: Future> {
        Running { #[pin] future: F },
        // It was taken away.
        Taken,
        Answered { output: Option<F::Output> },
        Over,
    }
}

/// The content of a pinned call, which stays where it is.
#[expect(unsafe_code, reason = "no library pins what lies in a mutex")]
fn pin_content<'a, F: Future>(
    content: &'a mut MutexGuard<'_, Content<F>>,
) -> Pin<&'a mut Content<F>> {
    // SAFETY: it lies in a pinned call, and a pinned call in an `Arc` from its beginning to its end: nothing moves it, and
    // what is replaced is dropped in its place.
    unsafe { Pin::new_unchecked(&mut **content) }
}

impl<F: Future> PinnedCall<F> {
    fn lock(&self) -> MutexGuard<'_, Content<F>> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F> PinnedCall<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    fn poll(
        self: &Arc<Self>,
        cx: &mut Context<'_>,
        make: &mut impl FnMut(bool) -> F,
    ) -> Poll<F::Output> {
        self.caller.register(cx.waker());
        let mut content = self.lock();
        // Before the poll: a wake-up during it must be heard.
        self.woken.store(0, Ordering::SeqCst);
        let mut content = pin_content(&mut content).project();
        if let In::Taken = content.slot.as_mut().project() {
            content.slot.set(Slot::Running { future: make(true) });
        }
        match content.slot.as_mut().project() {
            In::Running { .. } if *content.elsewhere => Poll::Pending,
            In::Running { future } => {
                let waker = Waker::from(self.clone());
                future.poll(&mut Context::from_waker(&waker))
            }
            In::Answered { output } => Poll::Ready(output.take().expect("it is taken once")),
            In::Taken | In::Over => panic!("polled after it has ended"),
        }
    }

    /// Polls what goes on without the caller, and leaves its answer to it.
    fn poll_elsewhere(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut content = self.lock();
        let mut slot = pin_content(&mut content).project().slot;
        if let In::Running { future } = slot.as_mut().project() {
            let output = std::task::ready!(future.poll(cx));
            slot.set(Slot::Answered { output: Some(output) });
        }
        drop(content);
        self.caller.wake();
        Poll::Ready(())
    }

    /// Drops the future of a caller that still does not poll it.
    fn take_away(&self) {
        let mut content = self.lock();
        if self.woken.load(Ordering::SeqCst) > LOOKS {
            let mut slot = pin_content(&mut content).project().slot;
            if let In::Running { .. } = slot.as_mut().project() {
                slot.set(Slot::Taken);
            }
        }
    }
}

impl<F> Wake for PinnedCall<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.woken.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.calls.expect_a_poll();
        }
        self.caller.wake();
    }
}

/// A pinned call as Latchwork's thread sees it.
trait Watchable: Send + Sync {
    /// Notes that it was seen; tells whether it was woken and not polled yet.
    fn look(self: Arc<Self>, io: &Io) -> bool;
}

impl<F> Watchable for PinnedCall<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    fn look(self: Arc<Self>, io: &Io) -> bool {
        let looks = self.woken.load(Ordering::SeqCst);
        if looks == 0 {
            return false;
        }
        if looks <= LOOKS {
            // Polled meanwhile, it stays so.
            let seen = (Ordering::SeqCst, Ordering::SeqCst);
            let _ = self.woken.compare_exchange(looks, looks + 1, seen.0, seen.1);
            return true;
        }
        // The caller that has it locked is polling it.
        let Ok(mut content) = self.content.try_lock() else { return true };
        if self.woken.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let goes_on = self.unpolled == Unpolled::GoesOn;
        let is_here = matches!(content.slot, Slot::Running { .. })
            && !mem::replace(&mut content.elsewhere, goes_on);
        drop(content);
        if is_here {
            let this = self.clone();
            // In a task of its own: what it wakes may do anything.
            io.spawn(async move {
                match this.unpolled {
                    Unpolled::BeginsAnew => this.take_away(),
                    Unpolled::GoesOn => poll_fn(|cx| this.poll_elsewhere(cx)).await,
                }
            });
        }
        false
    }
}

/// The calls of a manager that have not ended at their first poll.
pub(crate) struct Calls {
    io: Io,
    pinned_calls: Mutex<BTreeMap<u64, Weak<dyn Watchable>>>,
    last: AtomicU64,
    /// They are looked at until none is woken any more.
    looking: AtomicBool,
    news: Arc<Notify>,
}

impl Calls {
    pub(crate) fn new(io: Io) -> Arc<Self> {
        Arc::new(Self {
            io,
            pinned_calls: Mutex::default(),
            last: AtomicU64::new(0),
            looking: AtomicBool::new(false),
            news: Arc::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Weak<dyn Watchable>>> {
        self.pinned_calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enlist(&self, pinned: Weak<dyn Watchable>) -> u64 {
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(number, pinned);
        number
    }

    fn delist(&self, number: u64) {
        let left = self.lock().remove(&number);
        drop(left);
    }

    /// A call was woken: has it looked at until it is polled.
    fn expect_a_poll(&self) {
        // A plain load first: it is true nearly always where much is going on.
        if !self.looking.load(Ordering::SeqCst) && !self.looking.swap(true, Ordering::SeqCst) {
            self.news.notify_one();
        }
    }

    /// Looks at all; tells whether some were woken and not polled yet.
    fn look(&self) -> bool {
        let pinned_calls: Vec<_> = self.lock().values().filter_map(Weak::upgrade).collect();
        let mut expected = false;
        for pinned in pinned_calls {
            expected |= pinned.look(&self.io);
        }
        expected
    }

    /// The life of what looks at the calls, for the driver: ends with their last owner.
    pub(crate) fn life(self: &Arc<Self>) -> impl Future<Output = ()> + Send + 'static {
        let (this, news, io) = (Arc::downgrade(self), self.news.clone(), self.io.clone());
        async move {
            loop {
                let expected = {
                    let Some(calls) = this.upgrade() else { return };
                    calls.look() || {
                        // Said before the second look: a waker either sees it or is seen.
                        calls.looking.store(false, Ordering::SeqCst);
                        let expected = calls.look();
                        expected && !calls.looking.swap(true, Ordering::SeqCst)
                    }
                };
                if expected {
                    io.sleep(LOOK).await;
                } else {
                    news.notified().await;
                }
            }
        }
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        self.news.notify_one();
    }
}
