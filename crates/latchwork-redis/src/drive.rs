//! Who moves the bytes of a connection.
//!
//! The connection library gives a future that reads and writes. Latchwork's own thread polls it, so
//! that a connection lives whatever the user's runtime does. But a thread that sends would have to
//! wake that thread only to have its bytes written: whoever sends polls the future once itself, and
//! the write happens right there. The answer is read by Latchwork's thread.
//!
//! Measured: without it 1 task makes 0.85 of the cycles in the same time with 1.15 times the switches of
//! threads, and 8 clients with one key make 0.88. 64 tasks make 1.16 times as many, for they write
//! together anyway (`--example cycle_cost`, with and without in turns).

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::FutureExt;
use latchwork_store::Io;
use tokio::sync::SetOnce;

use crate::lock;

/// How often a thread polls at most because others have something to move.
const ROUNDS: u32 = 8;

type Moving = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The future of one connection, shared by those who send on it.
pub(crate) struct Drive {
    /// Gone when the connection has ended.
    moving: Mutex<Option<Moving>>,
    /// There is something to move that whoever polls may not have seen.
    again: AtomicBool,
    /// Wakes Latchwork's thread.
    waker: Mutex<Option<Waker>>,
    gone: Arc<Gone>,
}

/// What came of moving bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moved {
    /// Another thread is at it, and looks again.
    ByAnother,
    Here,
    /// The connection has ended.
    Ended,
}

thread_local! {
    /// While a thread sends on a connection, its address; and whether it has something to move.
    static SENDING: Cell<(usize, bool)> = const { Cell::new((0, false)) };
}

impl Drive {
    /// Lets `moving` run on the `Io` until it ends, and be helped by those who send. `gone` is told
    /// of the end.
    pub(crate) fn start(
        moving: impl Future<Output = ()> + Send + 'static,
        io: &Io,
        gone: Arc<Gone>,
    ) -> Arc<Self> {
        let this = Arc::new(Self {
            moving: Mutex::new(Some(Box::pin(moving))),
            again: AtomicBool::new(false),
            waker: Mutex::default(),
            gone,
        });
        let drive = this.clone();
        io.spawn(async move {
            poll_fn(|cx| {
                *lock(&drive.waker) = Some(cx.waker().clone());
                match drive.pump() {
                    Moved::Ended => Poll::Ready(()),
                    Moved::Here | Moved::ByAnother => Poll::Pending,
                }
            })
            .await;
        });
        this
    }

    /// Polls the future on this thread. If another thread does, that one polls it once more: it
    /// looks for the word that there is more after it has let go.
    fn pump(self: &Arc<Self>) -> Moved {
        self.again.store(true, Ordering::SeqCst);
        let mut moved = Moved::ByAnother;
        for _ in 0..ROUNDS {
            let mut moving = match self.moving.try_lock() {
                Ok(moving) => moving,
                Err(TryLockError::WouldBlock) => return moved,
                Err(TryLockError::Poisoned(error)) => error.into_inner(),
            };
            self.again.store(false, Ordering::SeqCst);
            let Some(future) = &mut *moving else { return Moved::Ended };
            let by = Waker::from(self.clone());
            if future.as_mut().poll(&mut Context::from_waker(&by)).is_ready() {
                *moving = None;
                drop(moving);
                self.gone.set();
                return Moved::Ended;
            }
            moved = Moved::Here;
            drop(moving);
            if !self.again.load(Ordering::SeqCst) {
                return moved;
            }
        }
        // The others go on and on: this thread has its own work to do.
        self.wake_driver();
        moved
    }

    /// Runs a future that sends at its first poll, and moves its bytes at once. `None` if the
    /// connection has ended without an answer.
    pub(crate) async fn send<F: Future>(self: &Arc<Self>, sending: F) -> Option<F::Output> {
        let mut sending = std::pin::pin!(sending);
        let (polled, moved) =
            poll_fn(|cx| Poll::Ready(self.first_poll(sending.as_mut(), cx))).await;
        match (polled, moved) {
            (Poll::Ready(output), _) => Some(output),
            // The library has the request in its hands, and answers it also when it ends.
            (_, Moved::Here) => Some(sending.await),
            _ => self.gone.unless(sending).await,
        }
    }

    fn first_poll<F: Future>(
        self: &Arc<Self>,
        sending: Pin<&mut F>,
        cx: &mut Context<'_>,
    ) -> (Poll<F::Output>, Moved) {
        let sender = Sender::begins(self);
        let polled = sending.poll(cx);
        if !sender.was_woken() {
            return (polled, Moved::ByAnother);
        }
        let moved = self.pump();
        if moved == Moved::Ended {
            self.wake_driver(); // its task ends too
        }
        (polled, moved)
    }

    fn wake_driver(&self) {
        let waker = lock(&self.waker).clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// While it lives, this thread sends on a connection. A panic ends that too.
struct Sender((usize, bool));

impl Sender {
    fn begins(drive: &Arc<Drive>) -> Self {
        Self(SENDING.replace((Arc::as_ptr(drive).addr(), false)))
    }

    fn was_woken(self) -> bool {
        SENDING.get().1
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        SENDING.set(self.0);
    }
}

impl Wake for Drive {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let here = Arc::as_ptr(self).addr();
        if SENDING.get().0 == here {
            SENDING.set((here, true)); // whoever sends helps as soon as it has
            return;
        }
        self.wake_driver();
    }
}

/// Tells those who wait for answers on a connection that none will come any more.
///
/// The library answers, with an error, what it has taken from its queue. A request that enters the
/// queue at the moment at which the library lets go of it is neither taken nor dropped: its answer
/// would be waited for as long as anybody has the connection
/// (<https://github.com/tokio-rs/tokio/issues/7714>).
#[derive(Debug, Default)]
pub(crate) struct Gone(SetOnce<()>);

impl Gone {
    /// All that will ever be answered has been.
    pub(crate) fn set(&self) {
        let _ = self.0.set(());
    }

    /// The answer, or `None` if the connection has ended without one.
    pub(crate) async fn unless<T>(&self, answer: impl Future<Output = T>) -> Option<T> {
        let mut answer = std::pin::pin!(answer);
        tokio::select! {
            biased;
            answer = answer.as_mut() => Some(answer),
            // It may have been answered before the end.
            _ = self.0.wait() => answer.as_mut().now_or_never(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use latchwork::Driver;
    use tokio::sync::{mpsc, oneshot};

    use super::*;

    type Requests = mpsc::UnboundedSender<oneshot::Sender<()>>;

    /// A stand-in for the library's future: answers each request.
    fn echo() -> (Requests, impl Future<Output = ()> + Send) {
        let (sender, mut requests) = mpsc::unbounded_channel::<oneshot::Sender<()>>();
        let moving = async move {
            while let Some(request) = requests.recv().await {
                let _ = request.send(());
            }
        };
        (sender, moving)
    }

    async fn ask(drive: &Arc<Drive>, sender: &Requests) {
        let sender = sender.clone();
        let asking = async move {
            let (reply, answer) = oneshot::channel();
            sender.send(reply).expect("the future lives");
            answer.await.expect("an answer");
        };
        drive.send(asking).await.expect("the connection lives");
    }

    #[tokio::test]
    async fn whoever_sends_moves_the_bytes() {
        let driver = Driver::start().expect("a thread");
        let (sender, moving) = echo();
        let drive = Drive::start(moving, &driver.io(), Arc::default());
        ask(&drive, &sender).await;
        // Latchwork's thread can move nothing until it is let go.
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (stands, standing) = oneshot::channel();
        driver.io().spawn(async move {
            let _ = stands.send(());
            let _ = stopped.recv();
        });
        standing.await.expect("it stands");
        for _ in 0..50 {
            // Timers of Latchwork stand still as well.
            #[expect(clippy::disallowed_methods, reason = "a limit beside Latchwork's thread")]
            let asked = tokio::time::timeout(Duration::from_secs(2), ask(&drive, &sender));
            asked.await.expect("it is moved without Latchwork's thread");
        }
        drop(stop);
    }

    #[tokio::test]
    async fn many_senders_at_once_are_all_served() {
        let driver = Driver::start().expect("a thread");
        let (sender, moving) = echo();
        let drive = Drive::start(moving, &driver.io(), Arc::default());
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (drive, sender) = (drive.clone(), sender.clone());
                #[expect(clippy::disallowed_methods, reason = "a test of threads")]
                std::thread::spawn(move || {
                    for _ in 0..2_000 {
                        latchwork::block_on(ask(&drive, &sender));
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no request is lost");
        }
    }

    /// The end overtakes a request: it is in the queue, and whoever would take it has gone.
    #[tokio::test]
    async fn a_request_that_nobody_took_is_not_waited_for() {
        let driver = Driver::start().expect("a thread");
        let (sender, mut requests) = mpsc::unbounded_channel();
        let (end, ended) = oneshot::channel::<()>();
        let moving = async move {
            let _ = ended.await;
        };
        let drive = Drive::start(moving, &driver.io(), Arc::default());
        let (reply, answer) = oneshot::channel::<()>();
        let asking = async move {
            sender.send(reply).expect("the queue lives");
            answer.await
        };
        let mut asking = Box::pin(drive.send(asking));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(asking.as_mut().poll(&mut cx).is_pending());
        end.send(()).expect("it runs");
        let asked = driver.io().within(Duration::from_secs(5), asking).await;
        assert!(asked.expect("it is not waited for").is_none());
        requests.try_recv().expect("the request is still in the queue");
        // Nor is one that comes later.
        assert!(drive.send(std::future::pending::<()>()).await.is_none());
    }

    #[tokio::test]
    async fn it_ends_with_its_senders() {
        let driver = Driver::start().expect("a thread");
        let (sender, moving) = echo();
        let drive = Drive::start(moving, &driver.io(), Arc::default());
        ask(&drive, &sender).await;
        drop(sender);
        let gone = async {
            while drive.moving.lock().unwrap().is_some() {
                driver.io().sleep(Duration::from_millis(1)).await;
            }
        };
        driver.io().within(Duration::from_secs(5), gone).await.expect("it has ended");
    }

    #[tokio::test]
    async fn an_answer_counts_also_after_the_end_and_none_is_waited_for_then() {
        let gone = Gone::default();
        assert_eq!(gone.unless(std::future::ready(1)).await, Some(1));
        let ends = async { gone.set() };
        assert_eq!(tokio::join!(gone.unless(std::future::pending::<u8>()), ends).0, None);
        assert_eq!(gone.unless(std::future::ready(2)).await, Some(2));
        assert_eq!(gone.unless(std::future::pending::<u8>()).await, None);
    }
}
