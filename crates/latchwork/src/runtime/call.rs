//! A call of the user, from its first poll to its answer, and what becomes of it if it is not polled.
//!
//! A future that nobody polls may have been given something: a hold that was handed to it, the lead
//! of its line, a grant of the store. Whoever is next would wait for it for ever, since the watchdog
//! renews what was handed over. So the call belongs to a seat that Latchwork's thread sees as well: one
//! that was woken and not polled for two seconds is taken away from the future, and dropped there.
//! That passes on what it had, exactly as if the user had dropped it. Polled again, the future begins
//! anew, at the front of its line.
//!
//! A release is not taken back but carried out: Latchwork's thread polls it to its end.

use std::collections::HashMap;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::sync::Notify;

use latchwork_store::{Io, Origin};

use crate::runtime::own::Forked;

/// How often calls that were woken are looked at.
const LOOK: Duration = Duration::from_millis(400);
/// How many looks find a call woken and not polled before it is taken away: 1.6 to 2.0 s.
const LOOKS: u32 = 5;

/// What becomes of a call that was woken and is not polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unpolled {
    /// It is dropped, and begins anew when it is polled again.
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
    Seated(Arc<Seat<F>>, u64),
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

// The future itself is boxed; what is made of it moves freely.
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
            let mut future = Box::pin((this.make)(false));
            // What ends at its first poll needs no seat.
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                this.stage = Stage::Done;
                return Poll::Ready(Ok(output));
            }
            let seat = Arc::new(Seat {
                slot: Mutex::new(Slot::Running(future)),
                caller: AtomicWaker::new(),
                woken: AtomicU32::new(0),
                unpolled: this.unpolled,
                calls: this.calls.clone(),
            });
            this.stage = Stage::Seated(seat.clone(), this.calls.enlist(Arc::downgrade(&seat) as _));
        }
        let Stage::Seated(seat, _) = &this.stage else { panic!("polled after it has ended") };
        let output = std::task::ready!(seat.poll(cx, &mut this.make));
        this.leave();
        Poll::Ready(Ok(output))
    }
}

impl<M, F: Future> Call<M, F> {
    /// Gives the seat up. What runs there is dropped with it.
    fn leave(&mut self) {
        if let Stage::Seated(seat, number) = mem::replace(&mut self.stage, Stage::Done) {
            self.calls.delist(number);
            let left = mem::replace(&mut *seat.lock(), Slot::Over);
            drop(left);
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
struct Seat<F: Future> {
    slot: Mutex<Slot<F>>,
    /// Whom to wake, with the future.
    caller: AtomicWaker,
    /// 0 since the last poll; after a wake-up one more than the looks that have seen it.
    woken: AtomicU32,
    unpolled: Unpolled,
    calls: Arc<Calls>,
}

enum Slot<F: Future> {
    Running(Pin<Box<F>>),
    /// It was taken away.
    Taken,
    /// It goes on elsewhere, and leaves its answer here.
    Elsewhere,
    Answered(F::Output),
    Over,
}

impl<F: Future> Seat<F> {
    fn lock(&self) -> MutexGuard<'_, Slot<F>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F> Seat<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    fn poll(
        self: &Arc<Self>,
        cx: &mut Context<'_>,
        make: &mut impl FnMut(bool) -> F,
    ) -> Poll<F::Output> {
        self.caller.register(cx.waker());
        let mut slot = self.lock();
        // Before the poll: whoever wakes during it is to be heard.
        self.woken.store(0, Ordering::SeqCst);
        match &mut *slot {
            Slot::Elsewhere => return Poll::Pending,
            Slot::Answered(_) => {
                if let Slot::Answered(output) = mem::replace(&mut *slot, Slot::Over) {
                    return Poll::Ready(output);
                }
            }
            Slot::Taken => *slot = Slot::Running(Box::pin(make(true))),
            Slot::Running(_) | Slot::Over => {}
        }
        let Slot::Running(future) = &mut *slot else { panic!("polled after it has ended") };
        let waker = Waker::from(self.clone());
        future.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

impl<F> Wake for Seat<F>
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

/// A seat as Latchwork's thread sees it.
trait Seen: Send + Sync {
    /// Notes that it was seen; tells whether it was woken and not polled yet.
    fn look(self: Arc<Self>, io: &Io) -> bool;
}

impl<F> Seen for Seat<F>
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
        // Whoever has it locked is polling it.
        let Ok(mut slot) = self.slot.try_lock() else { return true };
        if self.woken.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let left = match self.unpolled {
            Unpolled::BeginsAnew => Slot::Taken,
            Unpolled::GoesOn => Slot::Elsewhere,
        };
        match mem::replace(&mut *slot, left) {
            Slot::Running(future) => {
                drop(slot);
                let this = self.clone();
                // In a task of its own: what it wakes may do anything.
                io.spawn(async move {
                    match this.unpolled {
                        Unpolled::BeginsAnew => drop(future),
                        Unpolled::GoesOn => {
                            let output = future.await;
                            let mut slot = this.lock();
                            if let Slot::Elsewhere = *slot {
                                *slot = Slot::Answered(output);
                                drop(slot);
                                this.caller.wake();
                            }
                        }
                    }
                });
            }
            other => *slot = other,
        }
        false
    }
}

/// The calls of a manager that have not ended at their first poll.
pub(crate) struct Calls {
    io: Io,
    seats: Mutex<HashMap<u64, Weak<dyn Seen>>>,
    last: AtomicU64,
    /// They are looked at until none is woken any more.
    looking: AtomicBool,
    news: Arc<Notify>,
}

impl Calls {
    pub(crate) fn new(io: Io) -> Arc<Self> {
        Arc::new(Self {
            io,
            seats: Mutex::default(),
            last: AtomicU64::new(0),
            looking: AtomicBool::new(false),
            news: Arc::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Weak<dyn Seen>>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enlist(&self, seat: Weak<dyn Seen>) -> u64 {
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(number, seat);
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
        let seats: Vec<_> = self.lock().values().filter_map(Weak::upgrade).collect();
        let mut expected = false;
        for seat in seats {
            expected |= seat.look(&self.io);
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
                        // Said before the second look: whoever is woken either sees it or is seen.
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
