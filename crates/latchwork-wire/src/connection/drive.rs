//! The future of a connection, shared by the callers that wait for its answers.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::TcpStream;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use latchwork_store::{Io, Moment};

use super::background_side::BackgroundSide;
use super::caller_side::CallerSide;
use super::gone::Gone;
use super::moving::{self, Busy};
use super::socket::{Door, Socket};

/// How often a thread polls at most because others have something to move.
const ROUNDS: u32 = 8;
/// A connection that was not moved for so long may have ended unnoticed, if its caller's runtime is
/// blocked.
const STALE: Duration = Duration::from_millis(5);

type Moving = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A connection that is moved by the callers that wait for its answers; see the [crate].
pub struct Drive {
    moving: Mutex<Stage>,
    /// There is something to move that the thread that polls may not have seen.
    again: AtomicBool,
    pub(super) door: Arc<Door>,
    pub(super) io: Io,
    pub(super) caller: CallerSide,
    pub(super) background: BackgroundSide,
    /// When it was moved last, in nanoseconds of the boot clock.
    moved_at: AtomicU64,
    /// Requests that wait for an answer.
    pub(super) under_way: AtomicU32,
    /// Those that wait for messages that answer no request.
    listening: AtomicU32,
    gone: Gone,
    /// What a blocked thread watches.
    #[cfg(target_os = "linux")]
    bell: OnceLock<Option<latchwork_store::Doorbell>>,
}

enum Stage {
    /// The library moves itself until it has introduced itself to the server.
    Early,
    Moving(Moving),
    Ended,
}

/// The result of moving bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moved {
    /// Another thread is moving them, and checks again.
    ByAnother,
    Here,
    /// The connection has ended.
    Ended,
}

impl Drive {
    /// Creates the socket of a connected stream, and the drive of its user. Must be called inside
    /// the runtime of the `Io`.
    ///
    /// The drive ends when the library's future does, or with the `Io`.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub fn open(stream: TcpStream, io: &Io) -> io::Result<(Socket, Arc<Self>)> {
        let (socket, door) = Socket::new(stream)?;
        let watched = door.another()?;
        let this = Arc::new(Self {
            moving: Mutex::new(Stage::Early),
            again: AtomicBool::new(false),
            door,
            io: io.clone(),
            caller: CallerSide::default(),
            background: BackgroundSide::new(),
            moved_at: AtomicU64::new(0),
            under_way: AtomicU32::new(0),
            listening: AtomicU32::new(0),
            gone: Gone::default(),
            #[cfg(target_os = "linux")]
            bell: OnceLock::new(),
        });
        BackgroundSide::start(&this, watched);
        Ok((socket, this))
    }

    /// Takes over the future that moves the bytes of the socket.
    pub fn start(self: &Arc<Self>, moving: impl Future<Output = ()> + Send + 'static) {
        self.door.mark_driven();
        self.door.open();
        // The budget of a task that sends is for the task, not for what it moves for others.
        *self.lock() = Stage::Moving(Box::pin(tokio::task::unconstrained(moving)));
        self.background.wake();
    }

    fn lock(&self) -> MutexGuard<'_, Stage> {
        self.moving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the connection has ended.
    pub fn has_ended(&self) -> bool {
        self.gone.is_set()
    }

    /// Reads all received bytes, including the end of the connection, if it was not moved for a
    /// while. Call it before a request is sent: a request that is sent after the end has an unknown
    /// effect.
    ///
    /// The caller may hold locks: a task of [`finish`](crate::finish) whose answer is read is polled elsewhere.
    pub fn refresh(self: &Arc<Self>) {
        let moved_at = Moment::from_nanos(self.moved_at.load(Ordering::Relaxed));
        if self.io.now().since(moved_at) > STALE {
            self.door.open();
            moving::for_caller(|| self.pump());
        }
    }

    /// Polls the future on this thread. If another thread does, that one polls it once more: it
    /// checks whether there is more after it has let go.
    pub(super) fn pump(self: &Arc<Self>) -> Moved {
        if !self.io.origin().is_here() {
            // A forked child has the parent's socket, and must not take its bytes.
            return Moved::ByAnother;
        }
        self.again.store(true, Ordering::SeqCst);
        let mut moved = Moved::ByAnother;
        for _ in 0..ROUNDS {
            let mut stage = match self.moving.try_lock() {
                Ok(stage) => stage,
                Err(TryLockError::WouldBlock) => return moved,
                Err(TryLockError::Poisoned(error)) => error.into_inner(),
            };
            self.again.store(false, Ordering::SeqCst);
            let future = match &mut *stage {
                Stage::Moving(future) => future,
                Stage::Ended => return Moved::Ended,
                Stage::Early => {
                    drop(stage);
                    self.door.wake_early();
                    return Moved::Here;
                }
            };
            let busy = Busy::with(Arc::as_ptr(self).addr());
            let by = Waker::from(self.clone());
            let ended = future.as_mut().poll(&mut Context::from_waker(&by)).is_ready();
            let again = busy.was_woken();
            if ended {
                return self.end(stage);
            }
            moved = Moved::Here;
            drop(stage);
            self.moved_at.store(self.io.now().as_nanos(), Ordering::Relaxed);
            if self.door.is_full() {
                self.background.wake();
            }
            if !again && !self.again.load(Ordering::SeqCst) {
                return moved;
            }
        }
        // The others go on and on, and this thread has work of its own.
        self.background.wake();
        moved
    }

    fn end(&self, mut stage: MutexGuard<'_, Stage>) -> Moved {
        let ended = std::mem::replace(&mut *stage, Stage::Ended);
        drop(stage);
        drop(ended);
        self.door.close();
        self.gone.set();
        self.caller.stop();
        self.background.wake();
        Moved::Ended
    }

    /// Ends the connection: its background side will not run any more.
    pub(super) fn abandon(&self) {
        self.end(self.lock());
    }

    /// Whether bytes that come may matter to somebody.
    pub(super) fn expects(&self) -> bool {
        self.is_asked() || self.listening.load(Ordering::SeqCst) != 0
    }

    /// Whether a request is under way.
    pub(super) fn is_asked(&self) -> bool {
        self.under_way.load(Ordering::SeqCst) != 0
    }

    /// Runs a future that sends a request when it is first polled and awaits the answer, and moves
    /// the bytes of both. Returns `None` if the connection ended without an answer.
    ///
    /// A dropped future counts as sent.
    pub async fn send<F: Future>(self: &Arc<Self>, sending: F) -> Option<F::Output> {
        let mut sending = pin!(sending);
        let _under_way = Counted::in_(&self.under_way);
        let mut reader = None;
        let (polled, moved) = poll_fn(|cx| {
            let (polled, moved) = self.first_poll(sending.as_mut(), cx);
            if polled.is_pending() {
                self.find_reader(&mut reader);
            }
            Poll::Ready((polled, moved))
        })
        .await;
        if let Poll::Ready(output) = polled {
            return Some(output);
        }
        let answer = poll_fn(|cx| {
            // A caller that takes an answer may give the connection something to do.
            let polled = self.give(|| sending.as_mut().poll(cx));
            if polled.is_pending() {
                self.find_reader(&mut reader);
            }
            polled
        });
        match moved {
            // The library has the request in its hands, and answers it also when it ends.
            Moved::Here => Some(answer.await),
            _ => self.gone.unless(answer).await,
        }
    }

    /// Returns the `Io` that it runs on.
    pub fn io(&self) -> &Io {
        &self.io
    }

    /// Moves the bytes of queued requests on this thread.
    pub fn move_now(self: &Arc<Self>) {
        self.pump();
    }

    /// Queues a request in the connection's future, and moves it on this thread.
    pub fn give<T>(self: &Arc<Self>, give: impl FnOnce() -> T) -> T {
        let (given, is_woken) = {
            let busy = Busy::with(Arc::as_ptr(self).addr());
            let given = give();
            (given, busy.was_woken())
        };
        if is_woken {
            self.pump();
        }
        given
    }

    /// Makes the next read ask the system, even if no watcher has seen any data.
    pub fn look(&self) {
        self.door.open();
    }

    /// Waits for the answer to a queued request, and reads it on the caller side. The request must
    /// also be answered when the connection ends.
    pub async fn answer<F: Future>(self: &Arc<Self>, waiting: F) -> F::Output {
        self.read_for(&self.under_way, waiting).await
    }

    /// Runs a future that waits for messages of the server, and reads them on the caller side.
    pub async fn listen<F: Future>(self: &Arc<Self>, waiting: F) -> F::Output {
        self.read_for(&self.listening, waiting).await
    }

    /// Expects messages while the returned value lives: the background side reads those that a caller's
    /// runtime leaves unread.
    pub fn expect(self: &Arc<Self>) -> Expectation {
        self.listening.fetch_add(1, Ordering::SeqCst);
        self.background.patrol();
        Expectation(self.clone())
    }

    async fn read_for<F: Future>(self: &Arc<Self>, those: &AtomicU32, waiting: F) -> F::Output {
        let mut waiting = pin!(waiting);
        let _counted = Counted::in_(those);
        let mut reader = None;
        poll_fn(|cx| {
            let polled = waiting.as_mut().poll(cx);
            if polled.is_pending() {
                self.find_reader(&mut reader);
            }
            polled
        })
        .await
    }

    fn first_poll<F: Future>(
        self: &Arc<Self>,
        sending: Pin<&mut F>,
        cx: &mut Context<'_>,
    ) -> (Poll<F::Output>, Moved) {
        let busy = Busy::with(Arc::as_ptr(self).addr());
        let polled = sending.poll(cx);
        if !busy.was_woken() {
            return (polled, Moved::ByAnother);
        }
        (polled, self.pump())
    }

    /// Finds a reader of the answer for the caller that polls here.
    fn find_reader<'a>(self: &'a Arc<Self>, reader: &mut Option<Guest<'a>>) {
        if self.is_heard_here() {
            *reader = None;
            self.background.is_attended(&self.io);
            self.background.patrol();
        } else if CallerSide::serves_here(self) {
            *reader = None;
            self.background.patrol();
        } else if reader.is_none() {
            *reader = Some(Guest::of(self));
        }
    }

    #[cfg(target_os = "linux")]
    fn is_heard_here(self: &Arc<Self>) -> bool {
        // The descriptor of a connection that has ended is readable for ever.
        if self.has_ended() || !crate::Visit::can_listen() {
            return false;
        }
        let bell = self.bell.get_or_init(|| {
            let fd = Arc::new(self.door.another().ok()?.into());
            let drive = Arc::downgrade(self);
            Some(latchwork_store::Doorbell::new(fd, move || {
                if let Some(drive) = drive.upgrade() {
                    drive.door.open();
                    drive.pump();
                }
            }))
        });
        bell.as_ref().is_some_and(crate::Visit::offer)
    }

    #[cfg(not(target_os = "linux"))]
    fn is_heard_here(self: &Arc<Self>) -> bool {
        false
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        if self.io.origin().is_here() {
            self.door.close();
        }
        self.gone.set();
        self.caller.stop();
        self.background.wake();
    }
}

impl Wake for Drive {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // If this thread moves it, it does so as soon as it can.
        if !moving::again(Arc::as_ptr(self).addr()) {
            self.background.wake();
        }
    }
}

impl fmt::Debug for Drive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drive").field("door", &self.door).finish_non_exhaustive()
    }
}

/// One more in a count, until it is dropped.
struct Counted<'a>(&'a AtomicU32);

impl<'a> Counted<'a> {
    fn in_(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Keeps the expectation of messages; see [`Drive::expect`].
#[derive(Debug)]
pub struct Expectation(Arc<Drive>);

impl Drop for Expectation {
    fn drop(&mut self) {
        self.0.listening.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request whose answer the background side reads.
pub(super) struct Guest<'a>(&'a BackgroundSide);

impl<'a> Guest<'a> {
    fn of(drive: &'a Drive) -> Self {
        drive.background.admit();
        Self(&drive.background)
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        self.0.dismiss();
    }
}
