//! The way out of a connection. Whoever sends writes there and then, on its own thread; the session's
//! task writes what the connection does not take at once, and reads.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncWrite, WriteHalf};

use super::Flight;
use super::link::Link;
use super::proof::Reading;
use super::transport::Wire;

/// As much may wait to be written before requests are taken.
const MOST_WAITING: usize = 1 << 20;

pub(super) struct Outlet {
    pub(super) link: Link,
    pub(super) writer: WriteHalf<Box<dyn Wire>>,
    /// With TLS what was taken is not yet sent.
    is_flushed: bool,
    /// Wakes the session's task.
    waker: Waker,
    trouble: Option<io::Error>,
}

impl Outlet {
    pub(super) fn new(writer: WriteHalf<Box<dyn Wire>>) -> Self {
        let link = Link::new();
        Self { link, writer, is_flushed: true, waker: Waker::noop().clone(), trouble: None }
    }

    pub(super) fn is_open(&self) -> bool {
        self.link.out.len() < MOST_WAITING
    }

    /// Takes a flight, and writes as much of it as goes.
    pub(super) fn send(&mut self, flight: Flight, now: Reading) {
        self.link.take(flight, now);
        let waker = self.waker.clone();
        if let Poll::Ready(error) = self.poll_write(&mut Context::from_waker(&waker)) {
            self.trouble = Some(error);
            waker.wake();
        }
    }

    /// The part of the session's task: it is woken when there is more to do, and told of trouble.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        self.waker.clone_from(cx.waker());
        match self.trouble.take() {
            Some(error) => Poll::Ready(error),
            None => self.poll_write(cx),
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let writer = &mut self.writer;
        while !self.link.out.is_empty() {
            match Pin::new(&mut *writer).poll_write(cx, &self.link.out) {
                Poll::Ready(Ok(0)) => return Poll::Ready(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(taken)) => drop(self.link.out.drain(..taken)),
                Poll::Ready(Err(error)) => return Poll::Ready(error),
                Poll::Pending => return Poll::Pending,
            }
            self.is_flushed = false;
        }
        if !self.is_flushed {
            match Pin::new(writer).poll_flush(cx) {
                Poll::Ready(Ok(())) => self.is_flushed = true,
                Poll::Ready(Err(error)) => return Poll::Ready(error),
                Poll::Pending => {}
            }
        }
        Poll::Pending
    }
}
