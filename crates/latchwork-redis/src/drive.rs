//! Who moves the bytes of a connection.
//!
//! The connection library gives a future that reads and writes. Latchwork's own thread polls it, so
//! that a connection lives whatever the user's runtime does. But a thread that sends would have to
//! wake that thread only to have its bytes written: whoever sends polls the future once itself, and
//! the write happens right there. The answer is read by Latchwork's thread.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::task::{Context, Poll, Wake, Waker};

use latchwork_core::Io;

type Moving = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The future of one connection, shared by those who send on it.
pub(crate) struct Drive {
    /// Gone when the connection has ended.
    moving: Mutex<Option<Moving>>,
    /// Wakes Latchwork's thread.
    waker: Mutex<Option<Waker>>,
}

thread_local! {
    /// While a thread sends on a connection, its address; and whether it has something to move.
    static SENDING: Cell<(usize, bool)> = const { Cell::new((0, false)) };
}

impl Drive {
    /// Lets `moving` run on the `Io` until it ends, and be helped by those who send.
    pub(crate) fn start(moving: impl Future<Output = ()> + Send + 'static, io: &Io) -> Arc<Self> {
        let this =
            Arc::new(Self { moving: Mutex::new(Some(Box::pin(moving))), waker: Mutex::default() });
        let drive = this.clone();
        io.spawn(async move {
            let by = Waker::from(drive.clone());
            poll_fn(|cx| {
                *drive.waker.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some(cx.waker().clone());
                let mut moving = drive.moving.lock().unwrap_or_else(PoisonError::into_inner);
                poll(&mut moving, &by)
            })
            .await;
        });
        this
    }

    /// Runs a future that sends at its first poll, and moves its bytes at once.
    pub(crate) async fn send<F: Future>(self: &Arc<Self>, sending: F) -> F::Output {
        let mut sending = std::pin::pin!(sending);
        let mut first = true;
        poll_fn(|cx| {
            if !std::mem::take(&mut first) {
                return sending.as_mut().poll(cx);
            }
            let outer = SENDING.replace((Arc::as_ptr(self).addr(), false));
            let polled = sending.as_mut().poll(cx);
            let (_, woken) = SENDING.replace(outer);
            if woken {
                self.help();
            }
            polled
        })
        .await
    }

    /// Polls the future on this thread, unless another does.
    fn help(self: &Arc<Self>) {
        match self.moving.try_lock() {
            Ok(mut moving) => {
                let by = Waker::from(self.clone());
                if poll(&mut moving, &by).is_ready() {
                    self.wake_driver(); // its task ends too
                }
            }
            Err(TryLockError::WouldBlock) => self.wake_driver(),
            Err(TryLockError::Poisoned(_)) => self.wake_driver(),
        }
    }

    fn wake_driver(&self) {
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

fn poll(moving: &mut Option<Moving>, by: &Waker) -> Poll<()> {
    let Some(future) = moving else { return Poll::Ready(()) };
    let polled = future.as_mut().poll(&mut Context::from_waker(by));
    if polled.is_ready() {
        *moving = None;
    }
    polled
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
